package history

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// schema is the version of the documents that this code writes.
const schema = 1

// The names of the indexes.
const (
	messagesBySeq  = "tidemark_c_s"
	mentionsByUser = "tidemark_m_c_s"
	revokesByAt    = "tidemark_c_rv_at"
	membersByUser  = "tidemark_u_c"
	devicesByUser  = "tidemark_u_d"
)

// revokedAt is when a message was revoked, as Revoked.At has it.
const revokedAt = "rv.at"

type indexSpec struct {
	collection, name string
	keys             bson.D
	// having, if set, is the one field that a document must have to be in it.
	having string
}

// indexes are all that the store needs beside those of _id. None is unique:
// that is _id's alone, so a duplicate key always speaks of the document itself.
var indexes = []indexSpec{
	{"messages", messagesBySeq, bson.D{{Key: "c", Value: int32(1)}, {Key: "s", Value: int32(1)}}, ""},
	// Few messages mention anybody; the others do not pay for those that do.
	{"messages", mentionsByUser, bson.D{{Key: "m", Value: int32(1)}, {Key: "c", Value: int32(1)}, {Key: "s", Value: int32(1)}}, "m"},
	{"messages", revokesByAt, bson.D{{Key: "c", Value: int32(1)}, {Key: revokedAt, Value: int32(1)}}, revokedAt},
	{"members", membersByUser, bson.D{{Key: "u", Value: int32(1)}, {Key: "c", Value: int32(1)}}, ""},
	{"devices", devicesByUser, bson.D{{Key: "u", Value: int32(1)}, {Key: "d", Value: int32(1)}}, ""},
}

// filter gives what a document must have to be in the index; nil: nothing.
func (i indexSpec) filter() bson.D {
	if i.having == "" {
		return nil
	}
	return bson.D{{Key: i.having, Value: bson.D{{Key: "$exists", Value: true}}}}
}

// Prepare makes the collections and indexes that are missing and checks those
// that are there. What differs is an error that names it, and nothing is
// changed: somebody made it so. Several processes may prepare at once.
func (s *Store) Prepare(ctx context.Context) error {
	var errs []error
	for _, step := range []func(context.Context) error{s.prepareSchema, s.prepareCollections, s.prepareIndexes} {
		if err := step(ctx); err != nil {
			errs = append(errs, err)
			if !errors.Is(err, errDiffers) {
				break // the server does not answer as it should: more of it says nothing new
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return s.sorted(fmt.Errorf("prepare history in database %s: %w", s.db.Name(), err))
	}
	return nil
}

// prepareSchema refuses a database that a later version has prepared.
func (s *Store) prepareSchema(ctx context.Context) error {
	meta := s.collection("meta")
	filter := bson.D{{Key: "_id", Value: "schema"}}
	model := mongo.NewUpdateOneModel().SetUpsert(true).SetFilter(filter).
		SetUpdate(bson.D{{Key: "$max", Value: bson.D{{Key: "version", Value: int32(1)}}}})
	if err := s.upserts(ctx, meta.Collection, []mongo.WriteModel{model}); err != nil {
		return err
	}
	var d struct {
		Version int32 `bson:"version"`
	}
	if err := meta.newest.FindOne(ctx, filter).Decode(&d); err != nil {
		return fmt.Errorf("read schema version: %w", err)
	}
	if d.Version > schema {
		return fmt.Errorf("%w: schema %d, this one knows %d", errNewer, d.Version, schema)
	}
	return nil
}

type collectionInfo struct {
	Name    string `bson:"name"`
	Type    string `bson:"type"`
	Options struct {
		ClusteredIndex bson.Raw `bson:"clusteredIndex"`
		Collation      bson.Raw `bson:"collation"`
		Capped         bool     `bson:"capped"`
	} `bson:"options"`
}

func (s *Store) prepareCollections(ctx context.Context) error {
	clustered := bson.D{{Key: "key", Value: byID}, {Key: "unique", Value: true}, {Key: "name", Value: "tidemark_id"}}
	for name, opts := range map[string]*options.CreateCollectionOptionsBuilder{
		"messages":      options.CreateCollection().SetClusteredIndex(clustered),
		"members":       options.CreateCollection(),
		"conversations": options.CreateCollection(),
		"positions":     options.CreateCollection(),
		"devices":       options.CreateCollection(),
	} {
		if err := s.db.CreateCollection(ctx, name, opts); err != nil && !slices.Contains(mongo.ErrorCodes(err), codeExists) {
			return fmt.Errorf("create collection %s: %w", name, err)
		}
	}
	cur, err := s.db.ListCollections(ctx, in("name", []string{"messages", "members", "conversations", "positions", "devices"}))
	if err != nil {
		return fmt.Errorf("list collections: %w", err)
	}
	var infos []collectionInfo
	if err := cur.All(ctx, &infos); err != nil {
		return fmt.Errorf("list collections: %w", err)
	}
	var errs []error
	for _, c := range infos {
		switch {
		case c.Type != "" && c.Type != "collection" || c.Options.Capped:
			errs = append(errs, fmt.Errorf("collection %s is a %s, capped %v: %w", c.Name, c.Type, c.Options.Capped, errDiffers))
		case len(c.Options.Collation) > 0:
			errs = append(errs, fmt.Errorf("collection %s has the collation %v, ids must sort by their bytes: %w", c.Name, c.Options.Collation, errDiffers))
		case c.Name == "messages" && len(c.Options.ClusteredIndex) == 0:
			errs = append(errs, fmt.Errorf("collection messages is not clustered on _id: %w", errDiffers))
		}
	}
	return errors.Join(errs...)
}

func (s *Store) prepareIndexes(ctx context.Context) error {
	var errs []error
	for _, want := range indexes {
		coll := s.db.Collection(want.collection)
		there, err := s.checkIndex(ctx, coll, want)
		if err == nil && !there {
			s.log.InfoContext(ctx, "history index is being made", "collection", want.collection, "index", want.name)
			opts := options.Index().SetName(want.name)
			if f := want.filter(); f != nil {
				opts.SetPartialFilterExpression(f)
			}
			_, err = coll.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: want.keys, Options: opts})
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("index %s of %s: %w", want.name, want.collection, err))
			if !errors.Is(err, errDiffers) {
				break
			}
		}
	}
	return errors.Join(errs...)
}

// checkIndex tells whether an index is there, and gives errDiffers where
// something else stands under its name or its keys.
func (s *Store) checkIndex(ctx context.Context, coll *mongo.Collection, want indexSpec) (there bool, err error) {
	cur, err := coll.Indexes().List(ctx)
	if err != nil {
		return false, fmt.Errorf("list indexes: %w", err)
	}
	var found []bson.Raw
	if err := cur.All(ctx, &found); err != nil {
		return false, fmt.Errorf("list indexes: %w", err)
	}
	for _, raw := range found {
		var got struct {
			Name string `bson:"name"`
			Key  bson.D `bson:"key"`
		}
		if err := bson.Unmarshal(raw, &got); err != nil {
			return false, fmt.Errorf("decode index: %w: %w", err, errCorrupt)
		}
		if got.Name != want.name && !sameKeys(got.Key, want.keys) {
			continue
		}
		if got.Name != want.name {
			return false, fmt.Errorf("its keys stand under the name %s: %w", got.Name, errDiffers)
		}
		if odd := oddOptions(raw, want.filter()); !sameKeys(got.Key, want.keys) || odd != "" {
			return false, fmt.Errorf("it is on %s%s, and must be on %s: %w", keyText(got.Key), odd, keyText(want.keys), errDiffers)
		}
		there = true
	}
	return there, nil
}

// oddOptions tells which options an index has that change what it holds,
// beside the filter that it must have.
func oddOptions(raw bson.Raw, filter bson.D) string {
	var out strings.Builder
	for _, name := range []string{"unique", "sparse", "hidden"} {
		if v, ok := raw.Lookup(name).BooleanOK(); ok && v {
			out.WriteString(" " + name)
		}
	}
	for _, name := range []string{"expireAfterSeconds", "collation"} {
		if _, err := raw.LookupErr(name); err == nil {
			out.WriteString(" " + name)
		}
	}
	got, err := raw.LookupErr("partialFilterExpression")
	switch has := err == nil; {
	case !has && filter != nil:
		out.WriteString(" without partialFilterExpression")
	case has && filter == nil:
		out.WriteString(" partialFilterExpression")
	case has:
		var f bson.D
		if err := got.Unmarshal(&f); err != nil || fmt.Sprint(f) != fmt.Sprint(filter) {
			fmt.Fprintf(&out, " partialFilterExpression %v instead of %v", f, filter)
		}
	}
	return out.String()
}

// sameKeys compares keys in their order; a direction may be any kind of number.
func sameKeys(a, b bson.D) bool {
	return keyText(a) == keyText(b)
}

func keyText(keys bson.D) string {
	parts := make([]string, len(keys))
	for i, k := range keys {
		parts[i] = fmt.Sprintf("%s:%v", k.Key, k.Value)
	}
	return "{" + strings.Join(parts, ", ") + "}"
}
