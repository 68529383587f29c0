package rulesource_test

import (
	"encoding/json"
	"net/http"
	"strings"
)

// answerRules returns what a server of any kind answers to a request of a source from [sources], at once and
// with another version each time. It reports whether that contains the rules.
func answerRules(r *http.Request, text, version string) (body string, header http.Header, hasRules bool) {
	header = http.Header{}
	inJSON := func(v any) string {
		text, _ := json.Marshal(v) // texts and numbers
		return string(text)
	}
	switch path := r.URL.Path; {
	case path == "/rules.yaml":
		header.Set("Etag", `"`+version+`"`)
		return text, header, true
	case strings.HasPrefix(path, "/v1/kv/"):
		header.Set("X-Consul-Index", version)
		key := strings.TrimPrefix(path, "/v1/kv/")
		if strings.HasSuffix(key, "/") {
			key += "a.yaml"
		}
		return inJSON([]map[string]any{{"Key": key, "Value": []byte(text)}}), header, true
	case path == "/v3/kv/range":
		kvs := []map[string]any{{"key": []byte(etcdKeyOf(r)), "value": []byte(text)}}
		return inJSON(map[string]any{"header": map[string]string{"revision": version}, "kvs": kvs}), header, true
	case path == "/v3/watch":
		return `{"result":{"header":{"revision":"` + version + `"},"events":[{}]}}`, header, false
	case path == "/nacos/v1/cs/configs":
		return text, header, true
	case path == "/nacos/v3/client/cs/config":
		return inJSON(map[string]any{"data": map[string]string{"content": text}}), header, true
	case path == "/notifications/v2":
		return `[{"namespaceName":"rules.yaml","notificationId":` + version + `}]`, header, false
	case strings.HasPrefix(path, "/configs/"):
		return inJSON(map[string]any{"configurations": map[string]string{"content": text}}), header, true
	}
	return `{"token":"token-of-the-login","accessToken":"token-of-the-login"}`, header, false
}

// etcdKeyOf returns the key that is asked for, or one below it.
func etcdKeyOf(r *http.Request) string {
	var asked struct{ Key []byte }
	_ = json.NewDecoder(r.Body).Decode(&asked) // "" is no key of a test
	key := string(asked.Key)
	if strings.HasSuffix(key, "/") {
		key += "a.yaml"
	}
	return key
}
