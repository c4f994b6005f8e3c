package history_test

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/storage/history"
)

// database is what a fake says when it is prepared.
type database struct {
	version         int
	collections     bson.A
	messages, other bson.A // indexes
	devices         bson.A
	unready         int // code that createIndexes fails with
}

func keys(fields ...string) (d bson.D) {
	for _, f := range fields {
		d = append(d, bson.E{Key: f, Value: 1})
	}
	return d
}

func good() database {
	clustered := bson.D{{Key: "clusteredIndex", Value: bson.D{{Key: "key", Value: keys("_id")}, {Key: "unique", Value: true}}}}
	coll := func(name string, options bson.D) bson.D {
		return bson.D{{Key: "name", Value: name}, {Key: "type", Value: "collection"}, {Key: "options", Value: options}}
	}
	id := bson.D{{Key: "v", Value: 2}, {Key: "key", Value: keys("_id")}, {Key: "name", Value: "_id_"}}
	return database{
		version:     1,
		collections: bson.A{coll("messages", clustered), coll("members", bson.D{}), coll("conversations", bson.D{})},
		messages: bson.A{id, index("tidemark_c_s", keys("c", "s")), index("tidemark_m_c_s", keys("m", "c", "s"),
			bson.E{Key: "partialFilterExpression", Value: bson.D{{Key: "m", Value: bson.D{{Key: "$exists", Value: true}}}}}),
			index("tidemark_c_rv_at", keys("c", "rv.at"),
				bson.E{Key: "partialFilterExpression", Value: bson.D{{Key: "rv.at", Value: bson.D{{Key: "$exists", Value: true}}}}})},
		other:   bson.A{id, index("tidemark_u_c", keys("u", "c"))},
		devices: bson.A{id, index("tidemark_u_d", keys("u", "d"))},
	}
}

func index(name string, keys bson.D, options ...bson.E) bson.D {
	return append(bson.D{{Key: "v", Value: 2}, {Key: "key", Value: keys}, {Key: "name", Value: name}}, options...)
}

func (d database) answer(name string, cmd bson.Raw) bson.D {
	switch name {
	case "find":
		return found(bson.D{{Key: "_id", Value: "schema"}, {Key: "version", Value: d.version}})
	case "create":
		return failed(48)
	case "listCollections":
		return found(d.collections...)
	case "listIndexes":
		if cmd.Lookup("listIndexes").StringValue() == "messages" {
			return found(d.messages...)
		}
		if cmd.Lookup("listIndexes").StringValue() == "devices" {
			return found(d.devices...)
		}
		return found(d.other...)
	case "createIndexes":
		if d.unready != 0 {
			return failed(d.unready)
		}
	}
	return nil
}

func TestPrepareNamesWhatDiffers(t *testing.T) {
	tests := []struct {
		name   string
		change func(*database)
		class  fault.Class
		reason string
		says   []string
	}{
		{"an index on all messages", func(d *database) { d.messages[2] = index("tidemark_m_c_s", keys("m", "c", "s")) },
			fault.Fatal, "index", []string{"tidemark_m_c_s", "without partialFilterExpression"}},
		{"an index on other messages", func(d *database) {
			d.messages[2] = index("tidemark_m_c_s", keys("m", "c", "s"), bson.E{Key: "partialFilterExpression", Value: keys("m")})
		}, fault.Fatal, "index", []string{"tidemark_m_c_s", "partialFilterExpression"}},
		{"an index on other keys", func(d *database) { d.messages[1] = index("tidemark_c_s", keys("c")) },
			fault.Fatal, "index", []string{"index tidemark_c_s of messages", "{c:1}", "{c:1, s:1}"}},
		{"an index that is unique", func(d *database) {
			d.other[1] = index("tidemark_u_c", keys("u", "c"), bson.E{Key: "unique", Value: true})
		},
			fault.Fatal, "index", []string{"index tidemark_u_c of members", "unique"}},
		{"an index of some documents", func(d *database) {
			d.other[1] = index("tidemark_u_c", keys("u", "c"), bson.E{Key: "partialFilterExpression", Value: bson.D{}})
		}, fault.Fatal, "index", []string{"tidemark_u_c", "partialFilterExpression"}},
		{"an index that forgets", func(d *database) {
			d.messages[1] = index("tidemark_c_s", keys("c", "s"), bson.E{Key: "expireAfterSeconds", Value: 60})
		}, fault.Fatal, "index", []string{"expireAfterSeconds"}},
		{"the keys under another name", func(d *database) { d.messages[1] = index("c_1_s_1", keys("c", "s")) },
			fault.Fatal, "index", []string{"tidemark_c_s", "c_1_s_1"}},
		{"several at once", func(d *database) {
			d.messages[1], d.other[1] = index("tidemark_c_s", keys("s")), index("tidemark_u_c", keys("u"))
		}, fault.Fatal, "index", []string{"tidemark_c_s", "tidemark_u_c"}},
		{"messages that are not clustered", func(d *database) {
			d.collections[0] = bson.D{{Key: "name", Value: "messages"}, {Key: "type", Value: "collection"}, {Key: "options", Value: bson.D{}}}
		}, fault.Fatal, "index", []string{"messages is not clustered"}},
		{"a collation", func(d *database) {
			d.collections[1] = bson.D{{Key: "name", Value: "members"}, {Key: "options", Value: bson.D{{Key: "collation", Value: bson.D{{Key: "locale", Value: "de"}}}}}}
		}, fault.Fatal, "index", []string{"members has the collation"}},
		{"a view", func(d *database) {
			d.collections[2] = bson.D{{Key: "name", Value: "conversations"}, {Key: "type", Value: "view"}}
		}, fault.Fatal, "index", []string{"conversations is a view"}},
		{"a newer schema", func(d *database) { d.version = 2 }, fault.Fatal, "schema_newer", []string{"newer version"}},
		{"an index that cannot be made", func(d *database) { d.messages, d.unready = d.messages[:1], 13 },
			fault.Fatal, "auth", []string{"index tidemark_c_s of messages"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := good()
			tt.change(&d)
			f := startFake(t, d.answer)
			err := f.open(t, history.Config{}).Prepare(t.Context())
			if err == nil || fault.ClassOf(err) != tt.class || fault.ReasonOf(err) != tt.reason {
				t.Fatalf("%v %s: %v", fault.ClassOf(err), fault.ReasonOf(err), err)
			}
			for _, text := range append(tt.says, "database tidemark") {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%q is not in %v", text, err)
				}
			}
			if got := f.sent("dropIndexes", "drop", "collMod"); len(got) > 0 {
				t.Errorf("something was changed: %v", got)
			}
		})
	}
}

func TestPrepareMakesOnlyWhatIsMissing(t *testing.T) {
	d := good()
	d.other = d.other[:1]
	f := startFake(t, d.answer)
	if err := f.open(t, history.Config{}).Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	made := f.sent("createIndexes")
	if len(made) != 1 {
		t.Fatalf("%d indexes were made", len(made))
	}
	spec := documents(t, made[0], "indexes")[0]
	if name := spec.Lookup("name").StringValue(); name != "tidemark_u_c" {
		t.Errorf("made %v", spec)
	}
}

// TestUnreachable: nobody listens there.
func TestUnreachable(t *testing.T) {
	f := startFake(t, nil)
	addr := f.ln.Addr().String()
	f.ln.Close()
	s := f.open(t, history.Config{URI: "mongodb://ann:hunter2@" + addr + "/?serverSelectionTimeoutMS=300"})
	err := s.Prepare(t.Context())
	if err == nil || fault.ClassOf(err) != fault.Transient || !strings.Contains(err.Error(), addr) || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("%v %s: %v", fault.ClassOf(err), fault.ReasonOf(err), err)
	}
	if err := s.Check(t.Context()); err == nil {
		t.Error("it is ready")
	}
}
