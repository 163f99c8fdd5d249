# Checks out another commit, to compare it with this work tree. Sourced, not run.

# Checks out a commit in a work tree below the target directory. Sets `commit`, `compare`, a directory for
# other files and for builds of that commit, and `tree`.
check_out() {
    commit=$(git rev-parse --verify --quiet "$1^{commit}") || {
        echo "no such commit: $1" >&2
        exit 2
    }
    compare=${CARGO_TARGET_DIR:-$PWD/target}/compare
    tree=$compare/tree
    if [ -e "$tree/.git" ]; then
        git -C "$tree" checkout --quiet --detach "$commit"
    else
        git worktree prune
        git worktree add --quiet --detach "$tree" "$commit"
    fi
}
