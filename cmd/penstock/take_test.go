package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A refund sends the token, and an error without a JSON body shows the status.
func TestTakeSendsToken(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer open sesame" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		body, _ := io.ReadAll(r.Body)
		if string(body) != `{"key":"k","limit":"1/1h","cost":-2}` {
			t.Errorf("the server received %s", body)
		}
		_, _ = io.WriteString(w, `{"allowed":true,"granted":-2,"limit":5,"remaining":4,"retry_after":0,"reset_after":0.5,"delay":0,"source":"store"}`)
	}))
	defer s.Close()
	r := takeRequest{key: "k", limit: "1/1h", cost: -2}
	at, err := (&connectFlags{server: s.URL, token: "open sesame"}).connect("http")
	if err != nil {
		t.Fatal(err)
	}
	a, err := r.sendHTTP(t.Context(), at)
	if err != nil || a.text != "allowed granted=-2 remaining=4/5 reset=500ms" {
		t.Errorf("with the token: %+v, %v", a, err)
	}
	at.token = ""
	if _, err := r.sendHTTP(t.Context(), at); err == nil || !strings.Contains(err.Error(), "the server returned 403") {
		t.Errorf("without the token: %v", err)
	}
}
