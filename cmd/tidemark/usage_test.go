package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/tidemark-im/tidemark/internal/config"
)

func TestWrongCommandLines(t *testing.T) {
	for name, tt := range map[string]struct {
		args string
		says []string
	}{
		"unknown command":       {"plul", []string{`unknown command "plul"`, "did you mean pull"}},
		"unknown flag":          {"pull --usr x", []string{"unknown flag: --usr"}},
		"missing flags":         {"pull", []string{`"conversation", "user" not set`}},
		"no role":               {"run", []string{"at least one role", "toredis"}},
		"unknown roles":         {"run foo sync sync", []string{`unknown role "foo"`, "sync is named twice"}},
		"no topics command":     {"topics", []string{"create, check, describe"}},
		"unknown keys":          {"config --set a.b=1 --set c --set log.level=loud", []string{"unknown key a.b", "key=value", `log.level: "loud"`}},
		"unknown output":        {"version -o xml", []string{`--output: "xml" is none of text, json`}},
		"unknown order":         {"pull --user a --conversation group:g --order up --keep middle", []string{`--order: "up"`, `--keep: "middle"`}},
		"too many at once":      {"pull --user a --conversation group:g --num 1001", []string{"--num must be within 1..1000, is 1001"}},
		"unknown history":       {"join --user a --conversation group:g --history from:0", []string{`--history: "from:0"`}},
		"two bodies":            {"send --conversation group:g --from a --text x --json 1", []string{"json text"}},
		"no json":               {"send --conversation group:g --from a --json { --attr x", []string{"--json is not a JSON value", "--attr takes key=value"}},
		"wait on kafka":         {"send --conversation group:g --from a --text x --wait --kafka h:1", []string{"kafka wait"}},
		"no message":            {"send", []string{"[conversation input]"}},
		"too much at once":      {"send --input - --concurrency 0", []string{"--concurrency"}},
		"server without a host": {"pull --user a --conversation group:g --server ftp://x", []string{"--server", "http or https"}},
		"no history command":    {"history", []string{"copy, compare"}},
		"no histories":          {"history copy", []string{`"from", "to" not set`}},
		"import of nothing":     {"import", []string{`"to" not set`}},
		"import without input":  {"import --to sqlite:x", []string{"--input is missing"}},
		"import of two kinds":   {"import --to sqlite:x --input - --seq x", []string{"are for --format openim"}},
		"half of openim":        {"import --to sqlite:x --format openim --seq x", []string{"needs --messages, --seq and --seq-user"}},
		"lines and openim":      {"import --to sqlite:x --format openim --sort", []string{"are for --format lines"}},
		"import of what":        {"import --to sqlite:x --format xml", []string{`--format: "xml" is none of lines, openim`}},
		"import to nowhere":     {"import --to x --input -", []string{"--to must be sqlite:PATH"}},
		"no dlq command":        {"dlq", []string{"list, show, replay, drop"}},
		"letters by nothing":    {"dlq replay", []string{"name letters, or choose them"}},
		"letters that are none": {"dlq show toRedis/1 x", []string{`"toRedis/1" is not topic/partition/offset`, `"x" is not`}},
		"drop without a reason": {"dlq drop --topic toRedis", []string{`"why" not set`}},
		"odd filters":           {"dlq list --offsets 5-1 --since yesterday --until -1h --partition -2", []string{"--offsets", "--since", "--until", "--partition"}},
		"kafka that is none":    {"send --input - --kafka nonsense", []string{`kafka.brokers: "nonsense" is not host:port`}},
	} {
		t.Run(name, func(t *testing.T) {
			r := tidemark(t, "", strings.Fields(tt.args)...)
			if r.code != exitUsage || r.out != "" {
				t.Errorf("exit code %d, printed %q", r.code, r.out)
			}
			wantSays(t, r.errOut, append(tt.says, "--help' for usage")...)
			for line := range strings.Lines(r.errOut) {
				if !strings.HasPrefix(line, "tidemark: ") && !strings.HasPrefix(line, "Run '") {
					t.Errorf("stray line %q", line)
				}
			}
		})
	}
}

// What a benchmark is asked for is looked at before anything is started, and leaves
// nothing behind.
func TestWrongBenchmarks(t *testing.T) {
	for args, says := range map[string]string{
		"e2e --kafka nonsense --redis 127.0.0.1:1":                 `"nonsense" is not host:port`,
		"e2e --kafka 127.0.0.1:1 --redis 127.0.0.1:1 --set nope=1": "nope",
		"e2e --kafka 127.0.0.1:1":                                  "--kafka and --redis go together",
		"e2e --kafka= --redis=":                                    "--kafka is empty",
		"stage topush --redis=":                                    "--redis is empty",
		"e2e --rate 100,0":                                         "rate must be above 0",
		"e2e --rate NaN":                                           "rate must be above 0",
		"e2e --conversations 0":                                    "conversations must be within",
		"e2e --max --duration 9s":                                  "at least 10s, five times --max-lag, is 9s",
		"e2e --probes -1":                                          "probes must be within 0..10000 a second, are -1",
		"e2e --plot nowhere/a.svg":                                 "--plot",
		"e2e --plot a.gif":                                         "an .svg or a .png",
		"compare --processes both a b":                             "",
		"sync --rounds 0":                                          "rounds from 1 on",
		"stage toredis":                                            "stage toredis needs a Redis",
		"stage nope":                                               "none of toredis, tomongo, topush, gateway",
		"stage topush --batches 0":                                 "batches from 1 on",
		"plan --rate 1e308":                                        "rate must be above 0 and at most",
		"plan --burst 1e308":                                       "burst must be within",
		"plan --members 9223372036854775807":                       "members must be within",
		"plan --speed 1,2":                                         "three",
		"plan --speed 0":                                           "speed must be within",
		"plan --check":                                             "--kafka and --redis are needed",
	} {
		t.Run(args, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("TMPDIR", dir)
			r := tidemark(t, "", append([]string{"bench"}, strings.Fields(args)...)...)
			if r.code != exitUsage || r.out != "" {
				t.Errorf("exit code %d, printed %q", r.code, r.out)
			}
			wantSays(t, r.errOut, says, "--help' for usage")
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
	t.Run("nothing listens", func(t *testing.T) {
		r := tidemark(t, "", "bench", "e2e", "--kafka", "127.0.0.1:1", "--redis", "127.0.0.1:1")
		if r.code != exitFailed {
			t.Errorf("exit code %d", r.code)
		}
		wantSays(t, r.errOut, "kafka at 127.0.0.1:1")
	})
}

func TestNothingListens(t *testing.T) {
	for name, args := range map[string][]string{
		"sync":  {"watermarks", "--user", "a", "--server", "127.0.0.1:1"},
		"kafka": {"lag", "--set", "kafka.brokers=127.0.0.1:1"},
		"send":  {"send", "--conversation", "group:g", "--from", "a", "--text", "x", "--kafka", "127.0.0.1:1"},
		"dlq":   {"dlq", "list", "--set", "kafka.brokers=127.0.0.1:1"},
	} {
		t.Run(name, func(t *testing.T) {
			r := tidemark(t, "", args...)
			if r.code != exitFailed || r.out != "" || strings.Count(r.errOut, "\n") != 1 {
				t.Errorf("exit code %d\n%s%s", r.code, r.out, r.errOut)
			}
			wantSays(t, r.errOut, "127.0.0.1:1", "connection refused")
		})
	}
}

func TestConfigurationPrecedence(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tidemark.yaml")
	yaml := "log:\n  level: debug\n  format: json\nkafka:\n  brokers: [f:1]\nredis:\n  password: topsecret\n"
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		var out, errOut buffer
		a := &app{out: &out, errOut: &errOut, environ: func() []string {
			return []string{"TIDEMARK_LOG_LEVEL=error", "TIDEMARK_KAFKA_BROKERS=e:1,e:2"}
		}}
		if code := a.execute(t.Context(), args); code != exitOK {
			t.Fatalf("exit code %d: %s", code, errOut.String())
		}
		return out.String()
	}
	args := []string{"config", "--config", file, "--set", "log.level=warn"}
	text := run(args...)
	wantSays(t, text, "log.level=warn\n", "log.format=json\n", "kafka.brokers=[e:1 e:2]\n", "redis.password=***\n")
	got := objects[map[string]string](t, run(append(args, "-o", "json")...))
	if len(got) != 1 || len(got[0]) != len(config.Keys()) || got[0]["log.level"] != "warn" || got[0]["redis.password"] != "***" {
		t.Errorf("got %v", got)
	}
}

func TestKeysAndVersion(t *testing.T) {
	if r := tidemark(t, "", "config", "keys", "-o", "json"); r.code != exitOK || len(objects[keyLine](t, r.out)) != len(config.Keys()) {
		t.Errorf("exit code %d\n%s%s", r.code, r.out, r.errOut)
	}
	wantSays(t, tidemark(t, "", "config", "keys").out, "TIDEMARK_KAFKA_BROKERS")
	version = "v9.8.7"
	defer func() { version = "" }()
	wantSays(t, tidemark(t, "", "version").out, "tidemark v9.8.7 ", "go1.")
	if b := objects[build](t, tidemark(t, "", "version", "-o", "json").out); len(b) != 1 || b[0].Version != "v9.8.7" || b[0].Go == "" {
		t.Errorf("got %+v", b)
	}
}

func TestEveryCommandExplainsItself(t *testing.T) {
	var check func(c *cobra.Command)
	check = func(c *cobra.Command) {
		if c.Name() != "help" && c.Name() != "completion" && (c.Short == "" || c.Example == "") {
			t.Errorf("%s has no description or no example", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			check(sub)
		}
	}
	check(newRootCmd(&app{}))
}

func TestCompletion(t *testing.T) {
	for line, want := range map[string][]string{
		"run to":                    {"toredis", "tomongo", "topush", "tooffline"},
		"run toredis to":            {"tomongo", "topush", "tooffline"},
		"pull --order ":             {"asc", "desc"},
		"pull --keep ":              {"begin", "end"},
		"join --history ":           {"none", "all", "from:"},
		"version --output ":         {"text", "json"},
		"config --set kafka.sasl.u": {"kafka.sasl.user="},
		"topics ":                   {"create", "check", "describe"},
	} {
		t.Run(line, func(t *testing.T) {
			r := tidemark(t, "", append([]string{cobra.ShellCompNoDescRequestCmd}, strings.Split(line, " ")...)...)
			lines := strings.Split(strings.TrimSpace(r.out), "\n")
			got := lines[:len(lines)-1] // the last is the directive
			if len(got) != len(want) {
				t.Errorf("got %q, want %q", got, want)
			}
			wantSays(t, r.out, want...)
		})
	}
	if r := tidemark(t, "", "completion", "bash"); r.code != exitOK || !strings.Contains(r.out, "tidemark") {
		t.Errorf("exit code %d: %s", r.code, r.errOut)
	}
}

func TestTextOfOthersCannotForgeLines(t *testing.T) {
	if got, want := oneLine("a\nb\tc\x1b[2Jd é 👍🏽"), `a\nb\tc\u001b[2Jd é 👍🏽`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
