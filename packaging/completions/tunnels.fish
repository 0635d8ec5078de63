
# Names in /etc/wireguard, besides files.
function __fish_taupe_tunnels
    for file in /etc/wireguard/*.conf
        string replace -r '.*/(.*)\.conf$' '$1' -- $file
    end
end
complete -c taupe -n "__fish_taupe_using_subcommand app; and __fish_seen_subcommand_from allow deny remove list" -a "(__fish_taupe_tunnels)"
complete -c taupe -n "__fish_taupe_using_subcommand genkey pubkey" -l pq -d "A key for post-quantum handshakes"
complete -c taupe -n "__fish_taupe_using_subcommand pubkey" -l suite -x -a "hybrid-768 hybrid-512"
complete -c taupe -n "__fish_taupe_using_subcommand set" -a "pq-private-key pq-public-key post-quantum"
complete -c taupe -n "__fish_taupe_using_subcommand prove" -l tunnel -x -a "(__fish_taupe_tunnels)"
for action in up down reload save strip check status flows events doctor report proxy
    complete -c taupe -n "__fish_taupe_using_subcommand $action" -a "(__fish_taupe_tunnels)"
end
