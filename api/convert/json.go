package convert

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
)

// canonicalJSON gives a value as compact JSON with sorted keys and without
// HTML escapes, so that equal values have equal bytes, and one hash.
func canonicalJSON(v *structpb.Value) ([]byte, error) {
	if err := checkJSON(v, 0); err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v.AsInterface()); err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

// checkJSON refuses what JSON cannot say. AsInterface would turn NaN into a
// string, an unset value into null and broken UTF-8 into other characters.
func checkJSON(v *structpb.Value, depth int) error {
	if depth > MaxJSONDepth {
		return fmt.Errorf("nested deeper than %d levels", MaxJSONDepth)
	}
	switch k := v.GetKind().(type) {
	case *structpb.Value_NullValue, *structpb.Value_BoolValue:
		return nil
	case *structpb.Value_NumberValue:
		if math.IsNaN(k.NumberValue) || math.IsInf(k.NumberValue, 0) {
			return errors.New("a number is not finite, which JSON cannot say")
		}
		return nil
	case *structpb.Value_StringValue:
		return checkJSONText(k.StringValue)
	case *structpb.Value_ListValue:
		for _, e := range k.ListValue.GetValues() {
			if err := checkJSON(e, depth+1); err != nil {
				return err
			}
		}
		return nil
	case *structpb.Value_StructValue:
		for name, e := range k.StructValue.GetFields() {
			if err := errors.Join(checkJSONText(name), checkJSON(e, depth+1)); err != nil {
				return err
			}
		}
		return nil
	default:
		return errors.New("a value is missing")
	}
}

func checkJSONText(s string) error {
	if !utf8.ValidString(s) {
		return errors.New("a string is not valid UTF-8")
	}
	return nil
}

// parseJSON is the way back.
func parseJSON(b []byte) (*structpb.Value, error) {
	v := new(structpb.Value)
	if err := protojson.Unmarshal(b, v); err != nil {
		return nil, fmt.Errorf("parse body: %w", err)
	}
	return v, nil
}
