# What up, down and try share: daemons that are known by a pid file and a
# command line, ports that nobody has, and packages. Sourced, not run.
# shellcheck shell=bash

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dir=${XDG_STATE_HOME:-$HOME/.local/state}/tidemark
cache=${XDG_CACHE_HOME:-$HOME/.cache}/tidemark
export here dir cache

say() { printf '%s\n' "$*" >&2; }

die() {
  say "$(basename "$0"): $*"
  exit 1
}

# now gives milliseconds.
now() { date +%s%3N; }

# taken PORT: whether somebody listens there.
taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# port FILE [LAST]: the port that stands in FILE, or a free one, which is then
# written there. It lies below the ports that the kernel gives to clients, so
# that nobody comes upon it by accident. Ask only for what does not run.
port() {
  local p="" i
  [ -s "$1" ] && p=$(<"$1")
  # A process that was killed gives its ports back last, and under load late.
  for ((i = 0; i < 100; i++)); do
    if [ -z "$p" ] || ! taken "$p"; then break; fi
    sleep 0.1
  done
  while [ -z "$p" ] || taken "$p"; do
    p=$((20000 + (RANDOM * 32768 + RANDOM) % 12000))
  done
  printf '%s\n' "$p" >"$1"
  printf '%s\n' "$p"
}

# alive NAME: whether the daemon of that folder runs. A pid that went to another
# program is told by its command line, which names the folder.
alive() {
  local pid
  pid=$(pid_of "$1") || return 1
  { tr '\0' '\n' <"/proc/$pid/cmdline" | grep -qF -- "$dir/$1/"; } 2>/dev/null
}

pid_of() { cat "$dir/$1/pid" 2>/dev/null; }

# daemon NAME COMMAND...: starts COMMAND in the background. It outlives the
# terminal and holds no lock of ours. COMMAND must name its folder.
daemon() {
  local name=$1
  shift
  setsid nohup "$@" >>"$dir/$name/log" 2>&1 </dev/null 9>&- &
  local pid=$! i
  printf '%s\n' "$pid" >"$dir/$name/pid"
  disown
  # Until it has become COMMAND its command line is still ours.
  for ((i = 0; i < 500; i++)); do
    if alive "$name" || ! kill -0 "$pid" 2>/dev/null; then break; fi
    sleep 0.01
  done
}

# await NAME SECONDS COMMAND...: until COMMAND succeeds, as long as the daemon
# lives.
await() {
  local name=$1 until=$(($(now) + $2 * 1000))
  shift 2
  until "$@" >/dev/null 2>&1; do
    alive "$name" || die "$name ended at its start:
$(tail -n 15 "$dir/$name/log")"
    [ "$(now)" -lt "$until" ] || die "$name is not ready in time:
$(tail -n 15 "$dir/$name/log")"
    sleep 0.1
  done
}

# halt NAME: ends a daemon, first by request.
halt() {
  local pid i
  if alive "$1"; then
    pid=$(pid_of "$1")
    kill "$pid"
    for ((i = 0; i < 150; i++)); do
      alive "$1" || break
      sleep 0.1
    done
    if alive "$1"; then
      kill -9 "$pid"
      while alive "$1"; do sleep 0.05; done
    fi
  fi
  rm -f "$dir/$1/pid"
}

# need COMMAND PACKAGE...: installs PACKAGEs unless COMMAND is there.
need() {
  local command=$1 sudo=()
  shift
  command -v "$command" >/dev/null && return
  command -v apt-get >/dev/null || die "$command is missing, and there is no apt-get to install $* with"
  if [ "$(id -u)" != 0 ]; then
    sudo -n true 2>/dev/null || die "$command is missing: apt-get install $*"
    sudo=(sudo)
  fi
  say "installing $*"
  # A machine that is new has no lists of packages yet.
  local apt=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq)
  "${apt[@]}" install -y --no-install-recommends "$@" >"$dir/apt.log" 2>&1 && return
  "${apt[@]}" update >>"$dir/apt.log" 2>&1 || true
  "${apt[@]}" install -y --no-install-recommends "$@" >>"$dir/apt.log" 2>&1 ||
    die "cannot install $*: $(tail -n 5 "$dir/apt.log")"
}

# lock: one up or down at a time for a folder.
lock() {
  mkdir -p "$dir"
  dir=$(cd "$dir" && pwd)
  exec 9>"$dir/lock"
  flock -w 900 9 || die "$dir is in use by another up or down"
}
