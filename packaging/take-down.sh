# Takes tunnels and locks down before `taupe` is removed. Applications that are selected for them stay
# blocked until then, and nothing else unblocks them.
has_tunnels() {
    # A chroot sees the eBPF file system of its host, whose tunnels are not its own.
    pins=/run/taupe/bpf
    if [ / -ef /proc/1/root ]; then pins="$pins /sys/fs/bpf"; fi
    # Two files of each eBPF file system describe its content.
    [ -n "$(find /run/taupe -maxdepth 1 -name '*.journal' 2>/dev/null)" ] ||
        [ -n "$(find $pins -path '*taupe*' -type f -not -name '*.debug' 2>/dev/null)" ]
}
if [ -d /run/systemd/system ]; then
    systemctl stop 'taupe@*.service' 'taupe-hooks@*.service' 'taupe-lock@*.service' || :
fi
if has_tunnels; then
    if ! /usr/bin/taupe --version >/dev/null 2>&1; then
        echo "taupe: /usr/bin/taupe does not start, so tunnels and locks could not be taken down;" \
            "restart this machine to unblock their applications" >&2
    elif ! /usr/bin/taupe down --all; then
        echo "taupe was not removed: a tunnel is still up (see above), and its applications would stay" \
            "blocked. Run \`taupe down NAME\` (\`taupe status\` lists tunnels), then remove the package again." >&2
        exit 1
    fi
fi
