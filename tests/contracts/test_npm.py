"""Pinned packages through the real npm: what cannot be had, or is another, fails loudly."""

from dataclasses import replace

import pytest

from . import npm


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(npm, "CACHE", tmp_path)
    return tmp_path


def test_only_the_files_that_are_read_are_kept():
    kept = [path.name for path in npm.openapi().parents[1].rglob("*") if path.is_file()]
    assert sorted(kept) == ["api.github.com.json", "package.json"]


def test_a_registry_that_is_not_there_is_told(empty_cache, monkeypatch):
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "http://127.0.0.1:9")
    monkeypatch.setenv("NPM_CONFIG_CACHE", str(empty_cache / "npm"))
    monkeypatch.setenv("NPM_CONFIG_FETCH_RETRIES", "0")
    with pytest.raises(npm.Unobtainable, match=r"could not fetch yaml@2\.9\.1"):
        npm._had(npm.EMULATE_NEEDS[2])
    assert [path for path in empty_cache.glob("yaml*") if path.is_dir()] == []


def test_a_package_that_is_another_than_the_pinned_is_refused(empty_cache):
    with pytest.raises(npm.Unobtainable, match="pinned"):
        npm._had(replace(npm.WEBHOOK_SCHEMAS, sha512="another"))
