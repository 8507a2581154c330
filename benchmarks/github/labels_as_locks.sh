#!/usr/bin/env bash
# One round of a rival that claims by label and comment, with the real gh and nothing of ours:
# label, comment, read again, the earliest comment wins. Prints what came of it: none, lost N, done N.
# REPO names the repository, BEFORE_WORK and AFTER_WORK are commands run around the work (with the number).
set -euo pipefail

nonce="$(od -An -N8 -tx1 /dev/urandom | tr -d ' \n')"
free='[.[] | select([.labels[].name] | index("claimed") | not)] | sort_by(.number) | .[0].number // empty'
number="$(gh issue list --repo "$REPO" --label stage:ready --limit 100 --json number,labels --jq "$free")"
if [ -z "$number" ]; then
  echo "none"
  exit 0
fi

gh issue edit "$number" --repo "$REPO" --add-label claimed >/dev/null
gh issue comment "$number" --repo "$REPO" --body "<!-- claim run=$nonce ttl=600s --> a rival has it" >/dev/null

claims='[.comments[] | select(.body | startswith("<!-- claim run="))] | sort_by(.createdAt) | .[0].body'
earliest="$(gh issue view "$number" --repo "$REPO" --json comments --jq "$claims")"
case "$earliest" in
  *"run=$nonce"*) ;;
  *)
    gh issue edit "$number" --repo "$REPO" --remove-label claimed >/dev/null
    echo "lost $number"
    exit 0
    ;;
esac

${BEFORE_WORK:-true} "$number"
${AFTER_WORK:-true} "$number"
gh issue edit "$number" --repo "$REPO" --add-label stage:review --remove-label stage:ready,claimed >/dev/null
echo "done $number"
