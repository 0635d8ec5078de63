
# Names in /etc/wireguard, besides files.
function __fish_taupe_tunnels
    for file in /etc/wireguard/*.conf
        string replace -r '.*/(.*)\.conf$' '$1' -- $file
    end
end
for action in up down reload save strip check explain status
    complete -c taupe -n "__fish_taupe_using_subcommand $action" -a "(__fish_taupe_tunnels)"
end
