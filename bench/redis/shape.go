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

// A shape is one way to decide: a command with a script or without, in which the
// key's number and the moment are still open. The same shape is sent by
// redis-benchmark, by the filler and to a server that counts instructions.
type shape struct {
	name  string
	text  string   // of the script, if there is one
	words []string // the command

	// Every grant runs this command so many times, which is how grants are
	// counted: by the server, from outside the script.
	write string
	times int

	lasting bool // whether its keys are to have no expiry
	perKey  int  // keys in Redis for each key of the caller
}

// These stand for the key's number, which redis-benchmark puts in by itself, in
// twelve digits, and for the moment, which it does not know.
const (
	numberMark = "__rand_int__"
	momentMark = "__moment__"
)

// at returns the command for a key at a moment, in milliseconds from some start.
func (s *shape) at(number, moment int) []string {
	digits := fmt.Sprintf("%012d", number)
	return s.fill(moment, func(w string) string { return strings.ReplaceAll(w, numberMark, digits) })
}

// open returns the command at the first moment, with the key still open.
func (s *shape) open() []string {
	return s.fill(0, func(w string) string { return w })
}

func (s *shape) fill(moment int, number func(string) string) []string {
	words := slices.Clone(s.words)
	now := strconv.Itoa(firstMoment + moment)
	for i, w := range words {
		words[i] = number(strings.ReplaceAll(w, momentMark, now))
	}
	return words
}

// firstMoment is a time in milliseconds, as the callers of the designs have it.
const firstMoment = 1_700_000_000_000

// load makes the server know the script.
func (s *shape) load(srv *server) error {
	if s.text == "" {
		return nil
	}
	_, err := srv.ask("SCRIPT", "LOAD", s.text)
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

// ourShape returns what the store sends for a take of some units, by listening
// to it.
func ourShape(key string, limit penstock.Limit, cost int64) (*shape, error) {
	l := &listener{}
	store, err := redisstore.New(l, nil)
	if err != nil {
		return nil, err
	}
	_, err = store.Take(context.Background(), penstock.Request{Key: key, Limit: limit, Cost: cost})
	if !errors.Is(err, errOnlyListening) {
		return nil, fmt.Errorf("listening to the store: %w", err)
	}
	s := scripted("penstock "+limit.Algorithm.String(), l.call.Script.Text, l.call.Keys, l.call.Args...)
	s.write = "incrby"
	return s, nil
}

// A listener is a client that hears what the store would send.
type listener struct{ call redisstore.Call }

var errOnlyListening = errors.New("only listening")

func (l *listener) Do(_ context.Context, calls []redisstore.Call) {
	c := &calls[0]
	l.call = redisstore.Call{Script: c.Script, Keys: slices.Clone(c.Keys), Args: slices.Clone(c.Args)}
	c.Err = errOnlyListening
}

func (l *listener) Info(context.Context) (map[string]string, error) {
	return map[string]string{"nobody": "redis_version:7.0.0\r\nmaxmemory_policy:noeviction\r\n"}, nil
}

func (l *listener) Sharded() bool { return false }
