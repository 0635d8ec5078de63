
# Interfaces, names in /etc/wireguard and files, besides what `_taupe` knows; and
# all that there is to complete for `wg` and `wg-quick`.
_taupe_tunnels() {
    local program=${1##*/} word=$2
    case $program in
        wg | wg-quick) COMPREPLY=() ;;
        *) _taupe "$@" ;;
    esac
    if [[ $COMP_CWORD -lt 2 ]]; then
        case $program in
            wg) _taupe_words show showconf set setconf addconf syncconf genkey genpsk pubkey ;;
            wg-quick) _taupe_words up down save strip ;;
        esac
        return
    fi
    if [[ ${COMP_WORDS[1]} == @(genkey|pubkey) && $program != wg ]]; then
        case ${COMP_WORDS[1]},$COMP_CWORD,$3 in
            *,2,*) _taupe_words --pq ;;
            pubkey,3,*) _taupe_words --suite ;;
            pubkey,4,--suite) _taupe_words hybrid-768 hybrid-512 ;;
            *) COMPREPLY=() ;;
        esac
        return
    fi
    if [[ $word == -* ]]; then return; fi
    case ${COMP_WORDS[1]},$COMP_CWORD in
        explain,*)
            if [[ $3 == --conf ]]; then
                COMPREPLY=()
                _taupe_names
                _taupe_files '!*.conf'
            fi
            ;;
        prove,*)
            if [[ $3 == --tunnel ]]; then
                COMPREPLY=()
                _taupe_words $(taupe show interfaces 2>/dev/null)
            elif [[ $3 != --* ]]; then
                # A program, by its name or path.
                mapfile -t COMPREPLY < <(compgen -c -- "$word" | sort -u)
                _taupe_files
            fi
            ;;
        up,* | check,* | strip,* | proxy,2 | doctor,2 | app,3)
            COMPREPLY=()
            _taupe_names
            _taupe_files '!*.conf'
            ;;
        down,* | reload,* | save,* | status,2 | flows,2 | events,2 | report,2)
            _taupe_words $(taupe show interfaces 2>/dev/null)
            _taupe_names
            _taupe_files '!*.conf'
            ;;
        show,2) _taupe_words $(taupe show interfaces 2>/dev/null) all interfaces ;;
        show,3)
            _taupe_words public-key private-key listen-port fwmark peers preshared-keys endpoints \
                allowed-ips latest-handshakes transfer persistent-keepalive dump
            ;;
        showconf,2 | set,2 | setconf,2 | addconf,2 | syncconf,2)
            _taupe_words $(taupe show interfaces 2>/dev/null)
            ;;
        setconf,3 | addconf,3 | syncconf,3)
            COMPREPLY=()
            _taupe_files
            ;;
        set,*) _taupe_set "$3" ;;
    esac
}

# What may follow `set INTERFACE`, after the word $1.
_taupe_set() {
    COMPREPLY=()
    case $1 in
        private-key | preshared-key | pq-private-key | pq-public-key) _taupe_files ;;
        post-quantum) _taupe_words require prefer off default ;;
        peer) _taupe_words $(taupe show "${COMP_WORDS[2]}" peers 2>/dev/null) ;;
        listen-port | fwmark | endpoint | persistent-keepalive | allowed-ips) ;;
        *)
            case " ${COMP_WORDS[*]:3} " in
                *" peer "*)
                    _taupe_words peer remove preshared-key endpoint persistent-keepalive allowed-ips \
                        $(_taupe_own pq-public-key post-quantum)
                    ;;
                *) _taupe_words peer listen-port fwmark private-key $(_taupe_own pq-private-key) ;;
            esac
            ;;
    esac
}

# Words that `wg` does not have.
_taupe_own() {
    if [[ ${COMP_WORDS[0]##*/} != wg ]]; then echo "$@"; fi
}

# These use `word` of their caller. Offers those of some words that it begins.
_taupe_words() {
    local one
    COMPREPLY=()
    for one in "$@"; do
        if [[ $one == "$word"* ]]; then COMPREPLY+=("$one"); fi
    done
}

# Offers names in /etc/wireguard besides, each once.
_taupe_names() {
    local name
    for name in /etc/wireguard/"$word"*.conf; do
        name=${name##*/} name=${name%.conf}
        if [[ -e /etc/wireguard/$name.conf && " ${COMPREPLY[*]} " != *" $name "* ]]; then
            COMPREPLY+=("$name")
        fi
    done
}

# Offers folders and files besides, but for those that the pattern $1 filters out.
_taupe_files() {
    local name
    compopt -o filenames 2>/dev/null
    while IFS= read -r name; do COMPREPLY+=("$name"); done < <(
        compgen -f -X "${1-}" -- "$word"
        compgen -d -- "$word"
    )
}

complete -F _taupe_tunnels taupe
# Where they are not another program's.
for _taupe_alias in wg wg-quick; do
    if [[ $(readlink "$(type -P "$_taupe_alias")") == taupe ]]; then
        complete -F _taupe_tunnels "$_taupe_alias"
    fi
done
unset _taupe_alias
