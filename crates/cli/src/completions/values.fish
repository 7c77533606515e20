
# Values of options and paths on volumes, which the program knows.
function __steadfs_values
    set -l words (commandline -opc) (commandline -ct)
    # What is typed with a path is not run before its time.
    test "$words[1]" = steadfs; or return
    command steadfs completions fish --values -- $words 2>/dev/null
end
complete -c steadfs -a '(__steadfs_values)'
