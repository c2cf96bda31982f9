#!/bin/bash
# The programs of the system that dbtoll calls (programs.txt): which are missing, and their installation as Debian packages.
# A checkout's launcher sources this file; an installed package runs it:
#
#   install.sh [--yes] STATE GROUP...     STATE: a folder for its log and its lock; GROUP: as in programs.txt
#
# It asks before it installs, unless --yes. Where not root, or without apt-get, it says what is missing and installs nothing.

programs=$(dirname "${BASH_SOURCE[0]}")/programs.txt

say() { printf 'dbtoll: %s\n' "$*" >&2; }
hint() { printf '  hint: %s\n' "$*" >&2; }
fail() { say "$1"; [ -z "${2:-}" ] || hint "$2"; exit 69; }
have() { command -v "$1" >/dev/null 2>&1; }
is_root() { [ "$(id -u)" = 0 ] && [ "$(awk '{ print $3 }' /proc/self/uid_map 2>/dev/null || echo 4294967295)" = 4294967295 ]; }

# --- steps: what takes long, side by side, each with its log and its seconds ------------------------------------------
declare -A step_pid step_begin step_hint # by title
steps=()                                 # titles of those that go on
told_at=$SECONDS
APT='Debian packages'

step() { # TITLE HINT COMMAND...: begins it, in a process group of its own, so that it can be ended as a whole
  local title=$1
  step_hint[$title]=$2
  step_begin[$title]=$SECONDS
  shift 2
  say "$title: begins"
  set -m
  "$@" >"$(step_log "$title")" 2>&1 </dev/null &
  set +m
  step_pid[$title]=$!
  steps+=("$title")
}
step_log() { local name=${1,,}; echo "$state/setup-${name// /-}.log"; }
steps_end() { # [TITLE]: waits for all, or for that one; says every 10 s what they do. One that fails ends the set-up
  local title left
  while [ ${#steps[@]} -gt 0 ] && [[ -z ${1:-} || " ${steps[*]} " = *" $1 "* ]]; do
    left=()
    for title in "${steps[@]}"; do
      if kill -0 "${step_pid[$title]}" 2>/dev/null; then
        left+=("$title")
      elif wait "${step_pid[$title]}"; then
        say "$title: done, $((SECONDS - step_begin[$title])) s"
        told_at=$SECONDS
      else
        tail -n 20 "$(step_log "$title")" >&2
        end_steps
        fail "$title: failed; all that was said is in $(step_log "$title")" "${step_hint[$title]}"
      fi
    done
    steps=(${left[@]+"${left[@]}"})
    if [ $((SECONDS - told_at)) -ge 10 ]; then
      for title in ${steps[@]+"${steps[@]}"}; do
        say "$title: $((SECONDS - step_begin[$title])) s, $(tail -n 1 "$(step_log "$title")" | tr -d '\r' | cut -c1-80)"
      done
      told_at=$SECONDS
    fi
    [ ${#steps[@]} = 0 ] || sleep 0.1
  done
}
end_steps() { # apt-get ends what it has begun; all else can be ended at any time
  local title
  for title in ${steps[@]+"${steps[@]}"}; do
    kill -0 "${step_pid[$title]}" 2>/dev/null || continue
    if [ "$title" = "$APT" ]; then say "$title: are still being installed, and that is waited for"; else kill -- "-${step_pid[$title]}" || true; fi
  done
  wait
}
hold_lock() { # until this process and all its steps have ended
  exec 9>"$state/setup.lock"
  flock -n 9 && return
  say "waits for another set-up to end"
  flock 9
}
tidy_when_it_ends() {
  trap "trap '' HUP INT TERM; end_steps; exit 129" HUP
  trap "trap '' HUP INT TERM; end_steps; exit 130" INT
  trap "trap '' HUP INT TERM; end_steps; exit 143" TERM
  if is_root; then
    trap let_services_start EXIT
    let_services_start
  fi
}

# --- what is missing --------------------------------------------------------------------------------------------------
missing=()  # programs
packages=() # that have them
unknown=()  # packages that no source of this system has
lack() { # PROGRAM PACKAGE...
  local name
  missing+=("$1")
  shift
  for name in "$@"; do [[ " ${packages[*]} " = *" $name "* ]] || packages+=("$name"); done
}
plan_programs() { # GROUP...
  local program package group
  while read -r program package group; do
    [[ " $* " = *" $group "* ]] || continue
    case $group in
      docker) ! has_a_daemon || continue ;;
      podman) [ ! -S /run/podman/podman.sock ] || continue ;;
      qemu) [ "$(uname -m)" = x86_64 ] || continue ;;
    esac
    have "$program" || lack "$program" "$package"
  done < <(grep -v '^#' "$programs")
}
has_a_daemon() { have dockerd || { have docker && [ -S /var/run/docker.sock ]; }; }
apt_has_lists() { [ -n "$(find /var/lib/apt/lists -name '*_Packages*' -print -quit 2>/dev/null)" ]; }
apt_knows() { [ -n "$(apt-cache madison "$1" 2>/dev/null)" ]; }

find_missing() { # COMMAND...: what calls `lack`; called again where apt's lists have to be read first
  missing=() packages=()
  "$@"
  if [ ${#missing[@]} -gt 0 ] && have apt-get && is_root && ! apt_has_lists; then
    step "$APT" "do what apt-get update says, then run this again" apt-get update -q
    steps_end
    missing=() packages=()
    "$@"
  fi
  if have apt-get && [ ${#packages[@]} -gt 0 ]; then
    local known
    known=$(apt-cache madison "${packages[@]}" 2>/dev/null | cut -d'|' -f1 | tr -d ' ')
    unknown=($(printf '%s\n' "${packages[@]}" | grep -vxF -e "$known" || true))
    mapfile -t packages < <(printf '%s\n' "${packages[@]}" | grep -xF -e "$known")
  fi
}

may_install() { # whether `packages` are there to be installed, with the user's leave; else it says what is missing
  [ ${#missing[@]} -gt 0 ] || return 1
  if ! have apt-get; then
    say "missing here: ${missing[*]}"
    hint "install these programs with your system's package manager; dbtoll goes on with what is there"
    return 1
  fi
  [ ${#unknown[@]} = 0 ] || say "goes on without ${unknown[*]}: no such package is known here"
  [ ${#packages[@]} -gt 0 ] || return 1
  local command="apt-get install -y --no-install-recommends ${packages[*]}"
  if ! is_root; then
    say "not root: goes on without ${missing[*]}"
    hint "root adds them with: $command"
    return 1
  fi
  say "will install these Debian packages: ${packages[*]}"
  local size
  size=$(apt_says)
  [ -z "$size" ] || say "$size"
  [ "$yes" = no ] || return 0
  [ -t 0 ] || fail "cannot ask: standard input is no terminal" "add --yes to agree to the list above"
  local answer
  read -r -p 'Install them? [y/N] ' answer
  [[ $answer != [yYjJ]* ]] || return 0
  say "nothing was installed: goes on with what is there"
  return 1
}
apt_says() { # how much it would download; this installs nothing, whatever is or is not to be confirmed
  local uri file size rest bytes=0
  while read -r uri file size rest; do ((bytes += size)); done \
    < <(apt-get install --print-uris -qq --no-install-recommends "${packages[@]}" 2>/dev/null | grep "^'")
  [ $bytes = 0 ] || echo "$((bytes / 1000000 + 1)) MB to download, and about four times as much on disk"
}

# --- their installation -----------------------------------------------------------------------------------------------
begin_to_install() { # PACKAGE...: a step
  keep_services_down
  step "$APT" "do what apt-get says, then run this again" apt_installs "$@"
}
apt_installs() {
  apt_get install -y --no-install-recommends "$@" && return
  # From old lists, or after an installation that was killed.
  DEBIAN_FRONTEND=noninteractive dpkg --configure -a && apt_get update && apt_get install -y --no-install-recommends "$@"
}
apt_get() { DEBIAN_FRONTEND=noninteractive apt-get "$@"; }

# A service that a package would start stays down: dbtoll starts a dockerd of its own where none runs. The policy denies only as
# long as this process has its lock open, so that one that a killed set-up left denies nothing.
policy=/usr/sbin/policy-rc.d
policy_mark="# of dbtoll's set-up, which removes it at its end"
keep_services_down() {
  [ ! -e $policy ] || return 0 # somebody else's, or ours
  printf '%s\n' '#!/bin/sh' "$policy_mark" "case \$(readlink /proc/$$/fd/9) in */setup.lock) exit 101 ;; esac" >$policy.dbtoll
  chmod 755 $policy.dbtoll
  mv $policy.dbtoll $policy
}
let_services_start() { # no policy is touched but ours and one whose set-up has ended
  rm -f $policy.dbtoll
  grep -qsxF "$policy_mark" $policy || return 0
  if grep -qF "/proc/$$/fd" $policy || $policy; then rm -f $policy; fi
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  set -euo pipefail
  PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
  yes=no
  [ "$1" != --yes ] || { yes=yes; shift; }
  state=$1
  shift
  hold_lock
  tidy_when_it_ends
  find_missing plan_programs "$@"
  if may_install; then
    begin_to_install "${packages[@]}"
    steps_end
  fi
fi
