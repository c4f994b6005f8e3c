package config

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"
)

// EnvPrefix begins the name of every environment variable.
const EnvPrefix = "TIDEMARK_"

// Source says where a configuration comes from.
type Source struct {
	// File is a YAML file. Empty: none.
	File string
	// Environ gives the environment, as os.Environ. nil: none is read.
	Environ func() []string
	// Flags are keys that were set on the command line, with their values.
	Flags map[string]string
	// Base is what all of it goes over. nil: Default.
	Base *Config
}

// Load reads and checks a configuration. The error names every fault.
func Load(src Source) (Config, error) {
	cfg := Default()
	if src.Base != nil {
		cfg = *src.Base
	}
	known := map[string]Key{}
	for _, k := range Keys() {
		known[k.Name] = k
	}
	var errs []error
	merged := koanf.New(".")
	if src.File != "" {
		k := koanf.New(".")
		if err := k.Load(file.Provider(src.File), yaml.Parser()); err != nil {
			return Config{}, fmt.Errorf("configuration file %s: %w", src.File, err)
		}
		errs = append(errs, unknown("in file "+src.File, k.Keys(), known)...)
		errs = append(errs, mergeInto(merged, k)...)
	}
	if src.Environ != nil {
		k := koanf.New(".")
		if err := k.Load(env.Provider(".", env.Opt{Prefix: EnvPrefix, EnvironFunc: src.Environ, TransformFunc: fromEnv(known)}), nil); err != nil {
			return Config{}, fmt.Errorf("environment: %w", err)
		}
		errs = append(errs, unknown("in the environment", k.Keys(), known)...)
		errs = append(errs, mergeInto(merged, k)...)
	}
	if len(src.Flags) > 0 {
		values := map[string]any{}
		for key, v := range src.Flags {
			values[key] = split(known[key], v)
		}
		k := koanf.New(".")
		if err := k.Load(confmap.Provider(values, "."), nil); err != nil {
			return Config{}, fmt.Errorf("flags: %w", err)
		}
		errs = append(errs, unknown("on the command line", k.Keys(), known)...)
		errs = append(errs, mergeInto(merged, k)...)
	}
	if err := merged.Unmarshal("", &cfg); err != nil {
		errs = append(errs, fmt.Errorf("configuration: %w", err))
	}
	if err := cfg.Validate(); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return Config{}, err
	}
	return cfg, nil
}

func mergeInto(dst, src *koanf.Koanf) []error {
	if err := dst.Merge(src); err != nil {
		return []error{fmt.Errorf("configuration: %w", err)}
	}
	return nil
}

// foreign begins the environment variables that share our prefix and are not
// ours: those of the tests on real services, of the scripts that start them, and
// the token of client commands.
var foreign = []string{"TIDEMARK_TEST_", "TIDEMARK_LOCAL_", "TIDEMARK_MONGO_URI", "TIDEMARK_TOKEN"}

// fromEnv maps TIDEMARK_KAFKA_TOPIC_PREFIX to kafka.topic_prefix. Names hold
// underscores themselves, so it is looked up, not cut.
func fromEnv(known map[string]Key) func(k, v string) (string, any) {
	byEnv := map[string]Key{}
	for _, k := range known {
		byEnv[k.Env()] = k
	}
	return func(name, v string) (string, any) {
		k, ok := byEnv[name]
		if !ok && slices.ContainsFunc(foreign, func(f string) bool { return strings.HasPrefix(name, f) }) {
			return "", nil
		}
		if !ok {
			return name, v
		}
		return k.Name, split(k, v)
	}
}

func split(k Key, v string) any {
	if !k.List {
		return v
	}
	parts := strings.Split(v, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

func unknown(where string, got []string, known map[string]Key) []error {
	var errs []error
	for _, name := range got {
		if _, ok := known[name]; !ok {
			errs = append(errs, fmt.Errorf("unknown key %s %s", name, where))
		}
	}
	return errs
}

// Key is one setting, as documented.
type Key struct {
	Name    string // "kafka.brokers"
	Default string
	Doc     string
	List    bool
	Secret  bool
}

// Env gives the key's environment variable.
func (k Key) Env() string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(k.Name, ".", "_"))
}

// Keys lists every setting, in the order of the struct.
func Keys() []Key {
	var out []Key
	walk(reflect.ValueOf(Default()), "", &out)
	return out
}

func walk(v reflect.Value, path string, out *[]Key) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name := f.Tag.Get("koanf")
		if name == "-" {
			continue
		}
		if f.Type.Kind() == reflect.Struct {
			walk(v.Field(i), path+name+".", out)
			continue
		}
		k := Key{Name: path + name, Doc: f.Tag.Get("doc"), List: f.Type.Kind() == reflect.Slice, Secret: f.Tag.Get("secret") != ""}
		k.Default = fmt.Sprint(v.Field(i).Interface())
		if list, ok := v.Field(i).Interface().([]string); ok {
			k.Default = strings.Join(list, ",")
		}
		*out = append(*out, k)
	}
}

// Table gives the Markdown table of all settings, as it stands in the README.
func Table() string {
	var b strings.Builder
	b.WriteString("| key | environment | default | meaning |\n| --- | --- | --- | --- |\n")
	for _, k := range Keys() {
		def := k.Default
		if def != "" {
			def = "`" + def + "`"
		}
		fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s |\n", k.Name, k.Env(), def, k.Doc)
	}
	return b.String()
}

// Effective lists every key with its value in c; secrets are masked.
func (c Config) Effective() []string {
	var out []string
	var collect func(v reflect.Value, path string)
	secret := map[string]bool{}
	for _, k := range Keys() {
		secret[k.Name] = k.Secret
	}
	collect = func(v reflect.Value, path string) {
		for i := range v.NumField() {
			f := v.Type().Field(i)
			name := f.Tag.Get("koanf")
			switch {
			case name == "-":
			case f.Type.Kind() == reflect.Struct:
				collect(v.Field(i), path+name+".")
			default:
				value := fmt.Sprint(v.Field(i).Interface())
				if secret[path+name] && value != "" {
					value = "***"
				}
				out = append(out, path+name+"="+value)
			}
		}
	}
	collect(reflect.ValueOf(c), "")
	slices.Sort(out)
	return out
}
