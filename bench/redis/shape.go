package main

import (
	"context"
	"crypto/sha1" //nolint:gosec // Redis names scripts by it
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/redisstore"
)

// A shape is a command, with a script or without, that has placeholders for the key's
// number and the time. The same shape is sent by redis-benchmark, by fill, and to a
// server under callgrind.
type shape struct {
	name  string
	text  string   // of the script, if there is one
	words []string // the command

	// Every grant runs this command so many times; the server's counter of it
	// gives the number of grants.
	write string
	times int

	lasting bool // whether its keys are to have no expiry
	perKey  int  // keys in Redis for each key of the caller
}

// The placeholders of the key's number, which redis-benchmark replaces with twelve
// digits, and of the time, which it does not know.
const (
	numberMark = "__rand_int__"
	timeMark   = "__time__"
)

// at returns the command for a key at a time, in milliseconds from some start.
func (s *shape) at(number, at int) []string {
	digits := fmt.Sprintf("%012d", number)
	return s.fill(at, func(w string) string { return strings.ReplaceAll(w, numberMark, digits) })
}

// open returns the command at the first time, with the placeholder of the key.
func (s *shape) open() []string {
	return s.fill(0, func(w string) string { return w })
}

func (s *shape) fill(at int, number func(string) string) []string {
	words := slices.Clone(s.words)
	now := strconv.Itoa(firstTime + at)
	for i, w := range words {
		words[i] = number(strings.ReplaceAll(w, timeMark, now))
	}
	return words
}

// firstTime is a time in milliseconds, as callers of the designs send it.
const firstTime = 1_700_000_000_000

// load loads the script into the server.
func (s *shape) load(srv *server) error {
	if s.text == "" {
		return nil
	}
	_, err := srv.command("SCRIPT", "LOAD", s.text)
	return err
}

func loadAll(srv *server, shapes []*shape) error {
	for _, s := range shapes {
		if err := s.load(srv); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// scripted returns a shape that runs a script on keys.
func scripted(name, text string, keys []string, args ...string) *shape {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // see the import
	words := append([]string{"EVALSHA", hex.EncodeToString(sum[:]), strconv.Itoa(len(keys))}, keys...)
	return &shape{name: name, text: text, words: append(words, args...), times: 1, perKey: len(keys)}
}

// unscripted returns the shape that sends the script's text with each call.
func (s *shape) unscripted() *shape {
	u := *s
	u.words = append([]string{"EVAL", s.text}, s.words[2:]...)
	return &u
}

// ourShape returns the command that the store sends for a take of some units.
func ourShape(key string, limit penstock.Limit, cost int64) (*shape, error) {
	l := &recordingClient{}
	store, err := redisstore.New(l, nil)
	if err != nil {
		return nil, err
	}
	_, err = store.Take(context.Background(), penstock.Request{Key: key, Limit: limit, Cost: cost})
	if !errors.Is(err, errOnlyListening) {
		return nil, fmt.Errorf("recording the store's command: %w", err)
	}
	s := scripted("penstock "+limit.Algorithm.String(), l.call.Script.Text, l.call.Keys, l.call.Args...)
	s.write = "incrby"
	return s, nil
}

// A recordingClient records what the store would send.
type recordingClient struct{ call redisstore.Call }

var errOnlyListening = errors.New("only listening")

func (l *recordingClient) Do(_ context.Context, calls []redisstore.Call) {
	c := &calls[0]
	l.call = redisstore.Call{Script: c.Script, Keys: slices.Clone(c.Keys), Args: slices.Clone(c.Args)}
	c.Err = errOnlyListening
}

func (l *recordingClient) Info(context.Context) (map[string]string, error) {
	return map[string]string{"node": "redis_version:7.0.0\r\nmaxmemory_policy:noeviction\r\n"}, nil
}

func (l *recordingClient) Sharded() bool { return false }
