package pipeline_test

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/pipeline/wire"
)

// request is what a request of Kafka's protocol begins with.
func request(key uint16) []byte {
	b := binary.BigEndian.AppendUint32(nil, 6)
	b = binary.BigEndian.AppendUint16(b, key)
	return append(b, 0, 12, 0, 0)
}

// TestOnlyFetchesWaitAndOnlyAfterOneAnother: a fetch leaves some time after the
// last one, the first after a pause at once, and nothing else is held back.
func TestOnlyFetchesWaitAndOnlyAfterOneAnother(t *testing.T) {
	const fetch, heartbeat = 1, 12
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		conn := pipeline.Paced(near, 10*time.Millisecond)
		go func() { _, _ = io.Copy(io.Discard, far) }()
		began := time.Now()
		var got []time.Duration
		write := func(key uint16) {
			if _, err := conn.Write(request(key)); err != nil {
				t.Fatal(err)
			}
			got = append(got, time.Since(began))
		}
		write(fetch)
		write(heartbeat)
		write(fetch)
		write(heartbeat)
		pause := time.NewTimer(7 * time.Millisecond)
		<-pause.C
		write(fetch)
		pause.Reset(25 * time.Millisecond)
		<-pause.C
		write(fetch)
		want := []time.Duration{0, 0, 10, 10, 20, 45}
		for i := range want {
			want[i] *= time.Millisecond
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("when requests left (-want +got):\n%s", diff)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestAClosedConnectionIsNotWaitedFor: whoever closes it ends a fetch's rest.
func TestAClosedConnectionIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		conn := pipeline.Paced(near, time.Hour)
		go func() { _, _ = io.Copy(io.Discard, far) }()
		if _, err := conn.Write(request(1)); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		ended := make(chan error, 1)
		go func() {
			_, err := conn.Write(request(1))
			ended <- err
		}()
		synctest.Wait()
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; err == nil {
			t.Error("a fetch was written to a closed connection")
		}
		if d := time.Since(began); d != 0 {
			t.Errorf("it was waited for %v", d)
		}
	})
}

// TestAGroupFetchesNoSoonerThanItMay: each record here is appended when the one
// before it was handled, so each needs a fetch of its own.
func TestAGroupFetchesNoSoonerThanItMay(t *testing.T) {
	// Only its certificate is wanted.
	srv := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(srv.Close)
	for _, tt := range []struct {
		name string
		opts []kfake.Opt
		tls  *tls.Config
	}{
		{name: "plain"},
		{
			name: "tls", opts: []kfake.Opt{kfake.TLS(&tls.Config{Certificates: srv.TLS.Certificates})},
			tls: &tls.Config{RootCAs: srv.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs, MinVersion: tls.VersionTLS12},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const records, every = 9, 100 * time.Millisecond
			_, cfg := cluster(t, 1, tt.opts...)
			cfg.TLS = tt.tls
			handled := make(chan struct{}, records)
			s := &stage{handle: func(_ context.Context, batch []wire.Record) (int64, error) {
				for range batch {
					handled <- struct{}{}
				}
				return end(batch), nil
			}}
			start(t, cfg, pipeline.GroupConfig{NewStage: s.make, FetchEvery: every})
			p := producer(t, cfg, "toRedis")
			var began time.Time
			for i := range records {
				send(t, p, "k", fmt.Sprint(i))
				select {
				case <-handled:
				case <-within(t).Done():
					t.Fatalf("record %d did not come", i)
				}
				if i == 0 {
					began = time.Now()
				}
			}
			// The fetch that brought the first record may have waited for it with Kafka
			// for a while.
			if d, least := time.Since(began), (records-3)*every; d < least {
				t.Errorf("%d more records came within %v, want at least %v", records-1, d, least)
			}
		})
	}
}
