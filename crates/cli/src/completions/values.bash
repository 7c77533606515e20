
# Values of options and paths on volumes, which the program knows; without any, commands, options and files as above.
_steadfs_with_values() {
    # What is typed with a path is not run before its time.
    [ "$1" = steadfs ] || { _steadfs "$@"; return; }
    local line=${COMP_LINE:0:COMP_POINT} rest word current prefix value i
    local -a words=() values=()
    # Bash splits words at colons, equals signs and the like, too.
    for ((i = 0; i <= COMP_CWORD; i++)); do
        rest=${line#"${line%%[![:blank:]]*}"}
        word=${COMP_WORDS[i]}
        ((i < COMP_CWORD)) || word=$rest
        if ((${#words[@]} == 0)) || [ "$rest" != "$line" ]; then
            words+=("$word")
        else
            words[${#words[@]}-1]+=$word
        fi
        line=${rest#"$word"}
    done
    current=${words[${#words[@]}-1]}
    prefix=${current%"${current##*[$COMP_WORDBREAKS]}"}
    words=("${words[@]//\\/}")
    while IFS= read -r value; do
        value=${value#"$prefix"}
        [[ $value != *[^[:alnum:]./,:=@%+~^_-]* ]] || printf -v value %q "$value"
        values+=("$value")
    done < <(command -- steadfs completions bash --values -- "${words[@]}" 2>/dev/null)
    if ((${#values[@]} == 0)); then
        _steadfs "$@"
        return
    fi
    COMPREPLY=("${values[@]}")
    if ((${#values[@]} == 1)) && [[ ${values[0]} == *[=/] ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
complete -F _steadfs_with_values -o bashdefault -o default steadfs
