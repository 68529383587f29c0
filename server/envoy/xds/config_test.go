package xds_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/server/envoy/xds"
)

func TestConfigFromURL(t *testing.T) {
	for text, want := range map[string]*xds.Config{
		"grpc://localhost": {Addr: "localhost:18000", Node: "default", Wait: true},
		"grpc://[::1]:1/":  {Addr: "[::1]:1", Node: "default", Wait: true},
		"grpcs://h:2?node=n&ca=/c&cert=/a&key=/b&server_name=s&wait=false&metadata=a:b&metadata=c:d:e&header=x:y%26z": {
			Addr: "h:2", TLS: true, Node: "n", CA: "/c", Cert: "/a", Key: "/b", ServerName: "s",
			Metadata: map[string]string{"a": "b", "c": "d:e"}, Headers: map[string]string{"x": "y&z"},
		},
	} {
		c, err := xds.ParseURL(text)
		if err != nil || !reflect.DeepEqual(c, want) {
			t.Errorf("%s: got %+v, %v, want %+v", text, c, err, want)
			continue
		}
		if again, err := xds.ParseURL(c.URL()); err != nil || !reflect.DeepEqual(again, c) {
			t.Errorf("%s: got %+v, %v, want %+v", c.URL(), again, err, c)
		}
	}
}

func TestConfigFromWrongURL(t *testing.T) {
	for text, want := range map[string]string{
		"localhost:18000":              "want a URL",
		"http://h:secret":              "want a URL",
		"grpc://":                      "want a URL",
		"grpc://h/secret":              "want a URL",
		"grpc://secret@h":              "want a URL",
		"grpc://h?node=":               "node is empty",
		"grpc://h?ca=secret":           "want grpcs://",
		"grpcs://h?cert=secret":        "want both",
		"grpc://h?wait=secret":         "want true or false",
		"grpc://h?other=secret":        "want node, ca",
		"grpc://h?node=secret&node=b":  "is set twice",
		"grpc://h?header=secret":       "want NAME:VALUE",
		"grpc://h?header=x:secret;%zz": "query is malformed",
	} {
		_, err := xds.ParseURL(text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v, want %s, and no part of the URL", text, err, want)
		}
	}
}
