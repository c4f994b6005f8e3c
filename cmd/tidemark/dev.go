package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/stack"
	"github.com/tidemark-im/tidemark/internal/config"
	"github.com/tidemark-im/tidemark/internal/telemetry"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// devFlags are the flags of dev. Empty addresses: what is configured.
type devFlags struct {
	data                 string
	kafkaPort            int
	sync, gateway, admin string
	auth                 bool
}

func newDevCmd(a *app) *cobra.Command {
	f := devFlags{}
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run everything in one process, with Kafka and Redis built in",
		Long: `Dev runs all roles in this process, on a Kafka and a Redis that run inside it and
an SQLite history. It speaks to them as a deployment does, over TCP with the
same drivers, and prints where everything listens, with lines to try.

Everybody on this machine may do everything. With --auth callers need a token, and
it prints how to make one; with settings of auth those hold.

With --data Kafka's log and history are kept in a directory. Redis starts empty
every time, so each restart is a recovery from a lost Redis. Without --data
nothing is left.`,
		Example: `  tidemark dev
  tidemark dev --data ./data
  tidemark dev --auth
  tidemark dev --kafka-port 0 --sync 127.0.0.1:0 --gateway 127.0.0.1:0 --admin 127.0.0.1:0
  tidemark dev --set log.level=info --set toredis.unread_policy=keep_on_send`,
		GroupID: groupRun,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.dev(cmd.Context(), f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.data, "data", "", "keep Kafka's log and history in this `directory`")
	flags.IntVar(&f.kafkaPort, "kafka-port", 9092, "`port` of Kafka on 127.0.0.1; 0: any that is free")
	flags.StringVar(&f.sync, "sync", "", "`address` of the sync API; port 0: any that is free (default 127.0.0.1:8080)")
	flags.StringVar(&f.gateway, "gateway", "", "`address` of the gateway (default 127.0.0.1:8081)")
	flags.StringVar(&f.admin, "admin", "", "`address` of metrics and health (default 127.0.0.1:8082)")
	flags.BoolVar(&f.auth, "auth", false, "ask callers for a token, signed with a secret that is made (with --data, kept) unless auth is set")
	return cmd
}

func (a *app) dev(ctx context.Context, f devFlags) (err error) {
	cfg, err := a.devConfig(f)
	if err != nil {
		return err
	}
	logger, level, err := telemetry.NewLeveled(a.errOut, cfg.Log.Level, cfg.Log.Format)
	if err != nil {
		return err
	}
	if f.data != "" {
		unlock, err := lockDir(f.data)
		if err != nil {
			return err
		}
		defer unlock()
	}
	secret := ""
	if f.auth && !cfg.Auth.Enabled() {
		if secret, err = devSecret(f.data); err != nil {
			return err
		}
		cfg.Auth.Secret = secret
	}
	if err := freePorts(ctx, f, cfg); err != nil {
		return interrupted(ctx, err)
	}
	emb, err := stack.StartEmbedded(stack.EmbeddedConfig{
		DataDir: f.data, KafkaPort: f.kafkaPort, SyncListen: cfg.Sync.Listen, GatewayListen: cfg.Gateway.Listen,
		Partitions: cfg.Kafka.Partitions, Base: &cfg, Logger: logger,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, emb.Cluster.Close()) }()
	svc, err := openService(ctx, emb.Config, append(stack.RolesFor(emb.Config), stack.Lag), logger, level)
	if err != nil {
		return interrupted(ctx, err)
	}
	err = svc.runReady(ctx, func() error {
		a.printDev(svc, emb.Config, f.data, secret)
		return nil
	})
	return errors.Join(err, svc.close())
}

// devConfig is the configuration of somebody who tries things out: few
// partitions, so that it starts at once, and a log that leaves room for what is
// printed. What the embedded servers decide is overwritten later.
func (a *app) devConfig(f devFlags) (config.Config, error) {
	base := config.Default()
	base.Kafka.Partitions = 4
	base.Log.Level = "warn"
	base.Sync.Console.Enabled = true
	for _, x := range []struct {
		key, value string
	}{{"sync.listen", f.sync}, {"gateway.listen", f.gateway}, {"admin.listen", f.admin}} {
		if x.value != "" {
			a.sets = append(a.sets, x.key+"="+x.value)
		}
	}
	return a.loadEmbedded("dev", &base)
}

// freePorts reports every port that is taken, by the flag that changes it. A
// port that is lost between this and its use is still an error, just one that
// names the setting instead.
func freePorts(ctx context.Context, f devFlags, cfg config.Config) error {
	var errs []error
	for _, x := range []struct{ flag, addr string }{
		{"kafka-port", net.JoinHostPort("127.0.0.1", strconv.Itoa(f.kafkaPort))},
		{"sync", cfg.Sync.Listen}, {"gateway", cfg.Gateway.Listen}, {"admin", cfg.Admin.Listen},
	} {
		if x.addr == "" {
			continue
		}
		var lc net.ListenConfig
		ln, err := lc.Listen(ctx, "tcp", x.addr)
		if err != nil {
			errs = append(errs, fmt.Errorf("cannot listen on %s, choose another with --%s (port 0 takes any that is free): %w", x.addr, x.flag, err))
			continue
		}
		if err := ln.Close(); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// lockDir keeps a second process out of a data directory.
func lockDir(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("--data: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("--data: %w", err)
	}
	switch ok, err := tryLock(f); {
	case err != nil:
		return nil, errors.Join(fmt.Errorf("--data %s: lock: %w", dir, err), f.Close())
	case !ok:
		return nil, errors.Join(fmt.Errorf("--data %s: another tidemark dev is using this directory", dir), f.Close())
	}
	// The lock goes with the file.
	return func() { _ = f.Close() }, nil
}

// printDev says where everything is, and how to try it.
func (a *app) printDev(svc *service, cfg config.Config, data, secret string) {
	kafka := cfg.Kafka
	broker := kafka.Brokers[0]
	addrs := slices.Insert(svc.addresses(), 1, address{"kafka", broker})
	if a.output == "json" {
		if secret != "" {
			a.emit(map[string]string{"name": "auth.secret", "value": secret}, nil)
		}
		for _, x := range addrs {
			a.emit(x, nil)
		}
		return
	}
	sync, gateway := svc.stack.SyncURL(), svc.stack.GatewayURL()
	server := ""
	if sync != defaultServer {
		server = " --server " + sync
	}
	live := server
	if gateway != defaultGateway {
		live += " --gateway " + gateway
	}
	curl, grpcurl := "", ""
	if cfg.Auth.Enabled() {
		const bearer = ` -H "authorization: Bearer $` + tokenEnv + `"`
		curl, grpcurl = bearer, bearer
	}
	pull := `{"user":"alice","ranges":[{"conversation":"group:g1","begin":1,"end":100}]}`
	try := [][2]string{
		{"alice joins a group:", "tidemark join --conversation group:g1 --user alice --history all" + server},
		{"what comes for alice, in a terminal of its own:", "tidemark watch --user alice" + live},
		{"a message from another producer:", `echo '{"conversation":"group:g1","sender":"alice","text":"hello"}' | kcat -P -b ` + broker +
			` -t ` + kafka.TopicPrefix + wire.TopicToRedis + ` -X topic.partitioner=murmur2_random -k group:g1`},
		{"what there is for alice, by HTTP and by gRPC:", "curl -s " + sync + "/tidemark.v1.SyncService/Pull" + curl + " -H 'content-type: application/json' -d '" + pull + "'"},
		{"", "grpcurl -plaintext" + grpcurl + " -d '" + pull + "' " + strings.TrimPrefix(sync, "http://") + " tidemark.v1.SyncService/Pull"},
	}
	if admin := hostOf(addrs, "admin"); admin != "" {
		try = append(try, [2]string{"whether all is well:", "curl -s http://" + admin + "/readyz"})
	}
	try = append(tokenLines(cfg.Auth, secret), try...)
	fmt.Fprintln(a.out, "Tidemark is ready. Ctrl-C stops it.")
	fmt.Fprintln(a.out)
	for _, x := range addrs {
		fmt.Fprintf(a.out, "%-8s %s\n", x.Name, x.URL)
	}
	fmt.Fprintln(a.out, "\nTo try it, from top to bottom:")
	for _, x := range try {
		if x[0] != "" {
			fmt.Fprintf(a.out, "\n  %s\n", x[0])
		}
		fmt.Fprintf(a.out, "  $ %s\n", x[1])
	}
	if data == "" {
		fmt.Fprintln(a.out, "\nNothing is kept after the end; --data DIR keeps the log and history.")
		return
	}
	fmt.Fprintf(a.out, "\nThe log and history are kept in %s; Redis began empty.\n", data)
}

// devSecret makes a secret, or gives the one that was made for a data directory.
func devSecret(data string) (string, error) {
	fresh := strings.ToLower(rand.Text() + rand.Text())
	if data == "" {
		return fresh, nil
	}
	name := filepath.Join(data, "auth-secret")
	b, err := os.ReadFile(name)
	switch {
	case err == nil:
		return strings.TrimSpace(string(b)), nil
	case !errors.Is(err, os.ErrNotExist):
		return "", fmt.Errorf("--auth: %w", err)
	}
	if err := os.WriteFile(name, []byte(fresh+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("--auth: %w", err)
	}
	return fresh, nil
}

// tokenLines are the lines that make a token to try the others with.
func tokenLines(auth config.Auth, secret string) [][2]string {
	switch {
	case !auth.Enabled():
		return nil
	case secret != "":
		return [][2]string{
			{"a token for alice, in every terminal:", "export TIDEMARK_AUTH_SECRET=" + secret},
			{"", "export " + tokenEnv + "=$(tidemark token --user alice --admin)"},
		}
	}
	return [][2]string{{"a token for alice that may join users, in every terminal:", "export " + tokenEnv + "=..."}}
}

// hostOf gives host:port of an address by its name.
func hostOf(addrs []address, name string) string {
	for _, x := range addrs {
		if x.Name == name {
			_, host, _ := strings.Cut(x.URL, "://")
			return host
		}
	}
	return ""
}
