package history

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/tidemark-im/tidemark/watermark"
)

// What tests of the inside use.
var (
	ClassOf    = classOf
	RowKey     = rowKey
	InputField = inputField
	ParseInput = parseInput
)

// Drop drops the database.
func (s *Store) Drop(ctx context.Context) error { return s.db.Drop(ctx) }

// Do runs a command, for what only somebody else would do to the database.
func (s *Store) Do(ctx context.Context, cmd bson.D) error { return s.db.RunCommand(ctx, cmd).Err() }

// Settings gives what the driver is told.
func Settings(cfg Config) (opts *options.ClientOptions, database string, err error) {
	opts, database, _, err = clientOptions(cfg)
	return opts, database, err
}

// EncodeMessage and DecodeMessage go through the stored form.
func EncodeMessage(conv watermark.ConversationID, m *watermark.Message) ([]byte, error) {
	return bson.Marshal(messageToDoc(conv, m))
}

func DecodeMessage(raw []byte) (watermark.Message, error) {
	var d messageDoc
	if err := bson.Unmarshal(raw, &d); err != nil {
		return watermark.Message{}, err
	}
	return d.message()
}

// DecodeMember and DecodeConversation read the stored form.
func DecodeMember(raw []byte) (watermark.MemberRow, error) {
	var d memberDoc
	err := bson.Unmarshal(raw, &d)
	return d.row(), err
}

func DecodeConversation(raw []byte) (watermark.Conversation, error) {
	var d convDoc
	if err := bson.Unmarshal(raw, &d); err != nil {
		return watermark.Conversation{}, err
	}
	return d.conversation()
}
