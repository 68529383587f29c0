package httpapi

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"unicode/utf8"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/server/engine"
)

// A call is one request to /v1/take: what it asks, and what it is answered. It is
// used again by others when it is done.
type call struct {
	in, out []byte
	reader  jsonReader

	mode      mode
	questions []question

	requests  []penstock.Request
	decisions []penstock.Decision
	verdict   engine.Result
	answers   []httplimit.Answer
}

// A mode says how the questions of a call belong together.
type mode string

const (
	alone mode = ""     // there is one
	each  mode = "each" // they are decided each by itself
	all   mode = "all"  // all of them are granted or none
)

var calls = sync.Pool{New: func() any { return &call{in: make([]byte, 0, 512), out: make([]byte, 0, 512)} }}

// maxKept is the longest body whose buffers are kept for the next call.
const maxKept = 8 << 10

// release lets others use the call. What it holds of others' keys is forgotten.
func (c *call) release() {
	if cap(c.in) > maxKept || cap(c.out) > maxKept || len(c.questions) > 1 {
		return
	}
	clear(c.questions)
	clear(c.requests)
	clear(c.verdict.Statuses)
	clear(c.answers)
	c.in, c.out, c.reader, c.mode = c.in[:0], c.out[:0], jsonReader{}, alone
	c.questions, c.requests, c.decisions = c.questions[:0], c.requests[:0], c.decisions[:0]
	c.answers = c.answers[:0]
	calls.Put(c)
}

var errTooLarge = errors.New("body too large")

// readBody reads the body into c.in, and no more than is allowed of it.
func (c *call) readBody(r *http.Request) error {
	if r.ContentLength > maxBody {
		return errTooLarge
	}
	for {
		if len(c.in) == cap(c.in) {
			c.in = append(c.in, 0)[:len(c.in)]
		}
		n, err := r.Body.Read(c.in[len(c.in):cap(c.in)])
		c.in = c.in[:len(c.in)+n]
		switch {
		case len(c.in) > maxBody:
			return errTooLarge
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return &fieldError{problem: "the body ended early: " + err.Error()}
		}
	}
}

// decode reads the questions from the body.
func (c *call) decode(maxDescriptors int) error {
	if !utf8.Valid(c.in) {
		return &fieldError{problem: "want UTF-8; a key of other bytes goes into key_base64"}
	}
	r := &c.reader
	*r = jsonReader{text: string(c.in)}
	first := question{cost: 1, most: maxDescriptors}
	err := r.object(func(name string) error {
		if err := first.said.add(name, ofQuestion|inList); err != nil {
			return err
		}
		switch name {
		case "mode":
			return c.readMode(r)
		case "requests":
			return r.array(func(i int) error { return c.readQuestion(r, i, maxDescriptors) })
		}
		return first.read(r, name)
	})
	if err == nil {
		err = r.end()
	}
	if err != nil {
		return err
	}
	if first.said.has(inList) {
		return c.checkList(first.said)
	}
	c.questions = append(c.questions, first)
	return first.check()
}

func (c *call) readMode(r *jsonReader) error {
	word, err := r.string()
	if err != nil {
		return err
	}
	c.mode = mode(word)
	if c.mode != each && c.mode != all {
		return &fieldError{problem: fmt.Sprintf("%.20q: want \"each\" or \"all\"", word)}
	}
	return nil
}

// readQuestion reads one of a list.
func (c *call) readQuestion(r *jsonReader, i, maxDescriptors int) error {
	if i == maxRequests {
		return &fieldError{problem: fmt.Sprintf("want at most %d", maxRequests)}
	}
	q := question{cost: 1, most: maxDescriptors}
	err := r.object(func(name string) error {
		if err := q.said.add(name, ofQuestion); err != nil {
			return err
		}
		return q.read(r, name)
	})
	c.questions = append(c.questions, q)
	return err
}

// checkList checks a list of questions, where these members were there.
func (c *call) checkList(there said) error {
	switch {
	case there.has(ofQuestion):
		name := there.first(ofQuestion)
		return &fieldError{path: []string{name}, problem: name + " belongs into one of the requests"}
	case !there.has(saidMode):
		return &fieldError{path: []string{"mode"}, problem: "want \"each\" or \"all\" with a list"}
	case len(c.questions) == 0:
		return &fieldError{path: []string{"requests"}, problem: "want at least one request"}
	}
	for i := range c.questions {
		if err := c.questions[i].check(); err != nil {
			return inRequest(i, err)
		}
	}
	return nil
}

// inRequest says which of a list an error is about.
func inRequest(i int, err error) error {
	return under("requests", under(strconv.Itoa(i), asFieldError(err)))
}
