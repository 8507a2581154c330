"""Node ids that look like GitHub's: a prefix for the kind, then an opaque part."""

from base64 import urlsafe_b64encode

PREFIX = {
    "user": "U_",
    "organization": "O_",
    "bot": "BOT_",
    "repository": "R_",
    "label": "LA_",
    "issue": "I_",
    "pull": "PR_",
    "comment": "IC_",
    "reaction": "REA_",
    "event": "EV_",
    "edit": "UCE_",
}


def node_id(kind: str, *numbers: int) -> str:
    packed = bytes([0x90 + len(numbers) + 1, 0]) + b"".join(
        b"\xcf" + number.to_bytes(8, "big") for number in numbers
    )
    return PREFIX[kind] + urlsafe_b64encode(packed).decode().rstrip("=")
