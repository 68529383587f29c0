package rulesource

import (
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/penstock-io/penstock/rules"
)

var (
	errWantKey   = errors.New("want a key after the host, such as host/limits/rules.yaml")
	errNoKey     = errors.New("there is no such key, or it is not readable")
	errNoRules   = errors.New("there are no rules below the key")
	errNoContent = errors.New("the namespace has no item content: create it as yaml, and name it with its suffix")
)

// orNoKey returns an error of a server of keys, which answers 404 if there is no such key.
func orNoKey(err error) error {
	if hasStatus(err, http.StatusNotFound) {
		return errNoKey
	}
	return err
}

// appendKey adds a key and its value. Below a key that ends with a slash, keys without a value are
// folders.
func appendKey(files []rules.File, asked, key string, value []byte) []rules.File {
	switch {
	case key == asked:
		key = ""
	case len(value) == 0:
		return files
	}
	if key == "" && strings.HasSuffix(asked, "/") {
		return files
	}
	return append(files, rules.File{Name: key, Text: value})
}

// escape returns a path with a slash at its beginning, as it is written in a URL.
func escape(path string) string { return (&url.URL{Path: "/" + path}).EscapedPath() }
