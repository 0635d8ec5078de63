
# Names in /etc/wireguard, besides files.
_taupe_tunnels() {
    local -a names=(/etc/wireguard/*.conf(N:t:r))
    _alternative "tunnels:tunnel:($names)" 'files:file:_files -g "*.conf"'
}
