#!/bin/sh
# Compares the Go API of the module in the current directory with that of its last version tag. Prints each incompatible
# change that the file does not list, and fails if there is one. `make api` runs it.
#
#   check.sh breaking.txt
set -eu

accepted=$(realpath "$1")
apidiff="${GO:-go} run golang.org/x/exp/cmd/apidiff@v0.0.0-20261014143641-f0251eb4aa3e"

tag=$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null) || {
	echo "api: there is no version tag yet, so there is no API to compare with"
	exit 0
}
module=$(${GO:-go} list -m)
work=$(mktemp -d)
trap 'git worktree remove --force "$work/old" 2>/dev/null; rm -rf "$work"' EXIT
git worktree add --quiet --detach "$work/old" "$tag"
(cd "$work/old" && $apidiff -m -w "$work/old.api" "$module")
$apidiff -m -w "$work/new.api" "$module"

# Commands, tests and internal packages are no API. apidiff leaves out internal packages by itself.
$apidiff -m -incompatible "$work/old.api" "$work/new.api" | grep -vE '^- \./(cmd|hack|integration)/' >"$work/changes" || true
grep '^- ' "$work/changes" | grep -vxFf "$accepted" >"$work/unlisted" || true
if [ -s "$work/unlisted" ]; then
	echo "api: these changes break programs that use $tag. Undo them, or add the lines to $1 and to the CHANGELOG:"
	cat "$work/unlisted"
	exit 1
fi
echo "api: no change since $tag breaks programs that use it, but for $(grep -c '^- ' "$accepted" || true) listed ones"
