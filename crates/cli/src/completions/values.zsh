
# Values of options and paths on volumes, which the program knows.
_steadfs_values() {
    local -a values
    # What is typed with a path is not run before its time.
    [[ ${(Q)words[1]} == steadfs ]] || return 1
    values=("${(@f)$(command -- steadfs completions zsh --values -- "${(@Q)words[1,CURRENT]}" 2>/dev/null)}")
    values=("${(@)values:#}")
    (( $#values )) || return 1
    if (( $#values == 1 )) && [[ $values[1] == *[=/] ]]; then
        compadd -S '' -- "${values[@]}"
    else
        compadd -- "${values[@]}"
    fi
}
