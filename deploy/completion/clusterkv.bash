# Completion of kvstored, gpu-worker and kvctl for bash. Words come from the programs' own --help, so
# that there is nothing to keep up to date.

_clusterkv_options() {
	"$@" --help 2>/dev/null | sed -n -E \
		-e 's/^  --\[no-\]([a-z0-9-]+).*/--\1\n--no-\1/p; t' -e 's/^  (--[a-z0-9-]+=?).*/\1/p'
}

# What an option may be: "one of a, b, c" in its help, which may go over lines.
_clusterkv_values() {
	local option=$1
	shift
	"$@" --help 2>/dev/null | awk -v option="  $option=" '
		index($0, option) == 1 { on = 1; text = ""; }
		on && /^  --/ && index($0, option) != 1 { exit }
		on { text = text " " $0 }
		END { if (match(text, /one of [^;)]*/)) {
			words = substr(text, RSTART + 7, RLENGTH - 7); gsub(/,/, " ", words); print words } }'
}

# Requests that a worker knows; which worker is among the words already, or in the environment.
_clusterkv_requests() {
	local program=$1 socket='' i
	for ((i = 2; i < ${#COMP_WORDS[@]}; i++)); do
		[ "${COMP_WORDS[i]}" = --worker-socket ] || continue
		[ "${COMP_WORDS[i + 1]:-}" = = ] && ((i++))
		socket=${COMP_WORDS[i + 1]:-}
	done
	"$program" trace ${socket:+--worker-socket="$socket"} --timeout=1s 2>/dev/null |
		awk 'NR > 1 { print $1 }'
}

_clusterkv() {
	local program=$1 word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]:-}
	local call=("$program") commands option value
	COMPREPLY=()
	commands=$("$program" --help 2>/dev/null |
		sed -n '/^Commands:/,/^$/ s/^  \([a-z-]*\) .*/\1/p')
	if [ -n "$commands" ]; then
		if [ "$COMP_CWORD" -eq 1 ]; then
			mapfile -t COMPREPLY < <(compgen -W "$commands --help --version" -- "$word")
			return
		fi
		call+=("${COMP_WORDS[1]}")
	fi
	# readline splits at "=": the option is one or two words back.
	if [ "$word" = = ]; then
		value='' option=$before
	elif [ "$before" = = ]; then
		value=$word option=${COMP_WORDS[COMP_CWORD - 2]:-}
	elif [ "${call[*]:1}" = trace ] && [[ $word != -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$(_clusterkv_requests "$program")" -- "$word")
		return
	else
		mapfile -t COMPREPLY < <(compgen -W "$(_clusterkv_options "${call[@]}")" -- "$word")
		[[ ${COMPREPLY[0]:-} == *= ]] && compopt -o nospace 2>/dev/null
		return
	fi
	mapfile -t COMPREPLY < <(compgen -W "$(_clusterkv_values "$option" "${call[@]}")" -- "$value")
	[ ${#COMPREPLY[@]} -gt 0 ] || mapfile -t COMPREPLY < <(compgen -f -- "$value")
}

complete -F _clusterkv kvstored gpu-worker kvctl
