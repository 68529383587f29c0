package server

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/penstock-io/penstock/internal/yamlerror"
	"go.yaml.in/yaml/v3"
)

// maxConfigBytes is far more than all settings need.
const maxConfigBytes = 1 << 20

// settingsFromFile reads the config file. An empty path has no settings.
func settingsFromFile(path string) (values, error) {
	if path == "" {
		return nil, nil
	}
	src, err := readConfigFile(path)
	if err != nil {
		return nil, fmt.Errorf("config file %s: %w", path, err)
	}
	root, err := parseYAML(src)
	if err != nil {
		line, message := yamlerror.Locate(src, err)
		return nil, fmt.Errorf("%s:%d: yaml: %s", path, line, message)
	}
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s:%d: want a mapping of settings, as in store: redis://localhost", path, root.Line)
	}
	found := values{}
	for i := 0; i+1 < len(root.Content); i += 2 {
		name, v := root.Content[i].Value, root.Content[i+1]
		at := fmt.Sprintf("%s:%d", path, root.Content[i].Line)
		if err := checkEntry(name, v); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", at, name, err)
		}
		if before, twice := found[name]; twice {
			return nil, fmt.Errorf("%s: %s: is set twice, first at %s", at, name, strings.TrimSuffix(before.from, ": "+name))
		}
		found[name] = value{v.Value, at + ": " + name}
	}
	return found, nil
}

func readConfigFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, errors.Unwrap(err) // the caller adds the path
	}
	defer func() { _ = f.Close() }()
	src, err := io.ReadAll(io.LimitReader(f, maxConfigBytes+1))
	if err == nil && len(src) > maxConfigBytes {
		err = fmt.Errorf("is larger than %d bytes", maxConfigBytes)
	}
	return src, err
}

func parseYAML(src []byte) (*yaml.Node, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(src, &document); err != nil {
		return nil, err
	}
	if len(document.Content) == 0 {
		return &yaml.Node{Kind: yaml.MappingNode}, nil // an empty file sets nothing
	}
	return document.Content[0], nil
}

func checkEntry(name string, v *yaml.Node) error {
	s, err := findSetting(name, func(s *Setting) string { return s.Name })
	switch {
	case err != nil:
		return err
	case s.set == nil:
		return errors.New("cannot be set in the config file")
	case v.Kind != yaml.ScalarNode:
		return errors.New("want a single value")
	case v.Tag == "!!null":
		return errors.New(`has no value; write "" for an empty one`)
	}
	return nil
}
