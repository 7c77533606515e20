
# Values of options and paths on volumes, which the program knows.
_steadfs_values() {
    local -a values
    values=("${(@f)$(command -- "${(Q)words[1]/#\~\//$HOME/}" completions zsh --values -- "${(@Q)words[1,CURRENT]}" 2>/dev/null)}")
    values=("${(@)values:#}")
    (( $#values )) || return 1
    if (( $#values == 1 )) && [[ $values[1] == *[=/] ]]; then
        compadd -S '' -- "${values[@]}"
    else
        compadd -- "${values[@]}"
    fi
}
