package syncapi

import (
	"errors"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"github.com/tidemark-im/tidemark/api/convert"
	"github.com/tidemark-im/tidemark/watermark"
)

// inField says that err is about a field of the request, or about one within
// it.
func inField(field string, err error) error {
	if err == nil {
		return nil
	}
	return &convert.FieldError{Field: field, Err: err}
}

func userIn(s string) (watermark.UserID, error) {
	u, err := watermark.ParseUserID(s)
	return u, inField("user", err)
}

func conversationIn(s string) (watermark.ConversationID, error) {
	c, err := watermark.ParseConversationID(s)
	return c, inField("conversation", err)
}

// ofCommand says that err is about a command that was made of a request: its
// fields are the request's, one level down.
func ofCommand(err error) error { return &commandError{err} }

type commandError struct{ error }

func (e *commandError) Unwrap() error { return e.error }

// violationsOf lists the fields that err is about.
func violationsOf(err error) []*errdetails.BadRequest_FieldViolation {
	_, command := errors.AsType[*commandError](err)
	var out []*errdetails.BadRequest_FieldViolation
	var walk func(err error, path string)
	walk = func(err error, path string) {
		if f, ok := err.(*convert.FieldError); ok {
			path = strings.TrimPrefix(path+"."+f.Field, ".")
			before := len(out)
			if walk(f.Err, path); len(out) > before {
				return
			}
			if command {
				path = path[strings.IndexByte(path, '.')+1:]
			}
			out = append(out, &errdetails.BadRequest_FieldViolation{Field: path, Description: strings.ToValidUTF8(f.Err.Error(), "?")})
			return
		}
		switch x := err.(type) {
		case interface{ Unwrap() error }:
			if err := x.Unwrap(); err != nil {
				walk(err, path)
			}
		case interface{ Unwrap() []error }:
			for _, err := range x.Unwrap() {
				walk(err, path)
			}
		}
	}
	walk(err, "")
	return out
}
