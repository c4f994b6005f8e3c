package history

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

const (
	// DefaultDatabase is used when neither Config nor URI names one.
	DefaultDatabase = "tidemark"
	// DefaultTimeout bounds one call of the driver.
	DefaultTimeout = 30 * time.Second
	// DefaultSelection is how long a call waits for a primary.
	DefaultSelection = 10 * time.Second
)

// Config says where a Store keeps its data.
type Config struct {
	// URI is mongodb://[user:password@]host[:port][,host...][/database][?options]
	// or the same with mongodb+srv. Required. A password may stand in it as it
	// is, or percent-encoded; where the URI can be read with it encoded, it is
	// taken so. Options that the URI does not set have this package's defaults:
	// w=majority, journal=true, retryWrites=true, timeoutMS and
	// serverSelectionTimeoutMS. Reads go to the primary whatever the URI says.
	URI string
	// Username and Password take the place of those in the URI. Empty: the URI's.
	Username, Password string
	// Database; empty: the URI's, else DefaultDatabase.
	Database string
	// Timeout bounds one call of the driver, with its retries. 0: the URI's
	// timeoutMS, else DefaultTimeout.
	Timeout time.Duration
	// Logger; nil: none.
	Logger *slog.Logger
	// Registerer takes the metrics; nil: they are counted and not shown.
	Registerer prometheus.Registerer
}

// Store is a history store on MongoDB.
type Store struct {
	client *mongo.Client
	db     *mongo.Database
	// What is read before a write on it must be the newest that the primary has,
	// whatever read concern the URI asks for: a majority read may lag behind the
	// version that a conditional update has to name.
	messages, members, convs, positions, devices collection

	metrics *metrics
	log     *slog.Logger
	secrets []string
}

// collection is a collection with its two kinds of reads.
type collection struct {
	*mongo.Collection
	newest *mongo.Collection
}

// New makes a Store. It begins to connect and waits for nothing; call Prepare
// next.
func New(cfg Config) (*Store, error) { return open(cfg, nil) }

func open(cfg Config, more func(*options.ClientOptions)) (*Store, error) {
	var errs []error
	opts, database, secrets, err := clientOptions(cfg)
	errs = append(errs, err)
	if cfg.Timeout < 0 {
		errs = append(errs, fmt.Errorf("history: Timeout is %v, must not be negative", cfg.Timeout))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	s := &Store{metrics: newMetrics(cfg.Registerer), log: cfg.Logger, secrets: secrets}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if wc := opts.WriteConcern; wc.W != "majority" || wc.Journal == nil || !*wc.Journal {
		s.log.Warn("history writes count as done before a majority has them on disk: an election may take back what was acknowledged",
			"w", wc.W, "journal", wc.Journal != nil && *wc.Journal)
	}
	opts.SetMonitor(s.metrics.monitor())
	if more != nil {
		more(opts)
	}
	if s.client, err = mongo.Connect(opts); err != nil {
		return nil, s.sorted(fmt.Errorf("open history: %w", err))
	}
	s.db = s.client.Database(database)
	s.messages, s.members, s.convs = s.collection("messages"), s.collection("members"), s.collection("conversations")
	s.positions, s.devices = s.collection("positions"), s.collection("devices")
	return s, nil
}

func (s *Store) collection(name string) collection {
	return collection{
		Collection: s.db.Collection(name),
		newest:     s.db.Collection(name, options.Collection().SetReadConcern(readconcern.Local())),
	}
}

// settle fills in what neither Config nor URI says.
func settle(opts *options.ClientOptions, cfg Config) error {
	opts.SetReadPreference(readpref.Primary())
	if opts.AppName == nil {
		opts.SetAppName("tidemark")
	}
	if opts.RetryWrites == nil {
		opts.SetRetryWrites(true)
	}
	switch wc := opts.WriteConcern; {
	case wc == nil:
		journal := true
		opts.SetWriteConcern(&writeconcern.WriteConcern{W: "majority", Journal: &journal})
	case !wc.Acknowledged():
		return errors.New("history: uri: w=0: writes that nobody acknowledges would be lost")
	case wc.W == nil:
		opts.SetWriteConcern(&writeconcern.WriteConcern{W: "majority", Journal: wc.Journal})
	}
	switch {
	case cfg.Timeout > 0:
		opts.SetTimeout(cfg.Timeout)
	case opts.Timeout == nil:
		opts.SetTimeout(DefaultTimeout)
	}
	if opts.ServerSelectionTimeout == nil {
		opts.SetServerSelectionTimeout(DefaultSelection)
	}
	return nil
}

// Close ends the connections. Calls in flight fail, at the latest when ctx
// ends.
func (s *Store) Close(ctx context.Context) error {
	if err := s.client.Disconnect(ctx); err != nil {
		return s.sorted(fmt.Errorf("close history: %w", err))
	}
	return nil
}

// Check tells whether the store can be read; it is for readiness.
func (s *Store) Check(ctx context.Context) error {
	err := s.convs.FindOne(ctx, bson.D{{Key: "_id", Value: ""}}).Err()
	if err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
		return s.sorted(fmt.Errorf("check history: %w", err))
	}
	return nil
}
