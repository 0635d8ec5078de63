# Before Taupe is removed. Applications that are selected for a tunnel stay blocked until `taupe down`,
# and after this there is no `taupe`.
if [ -d /run/systemd/system ]; then
    systemctl stop 'taupe@*.service' 'taupe-hooks@*.service' 'taupe-lock@*.service' || :
fi
if ! /usr/bin/taupe down --all; then
    echo "taupe is not removed, since a tunnel is not down, and its applications would stay blocked;" \
        "see above, take it down (\`taupe status\` lists tunnels, \`taupe down NAME\`), and remove taupe again" >&2
    exit 1
fi
