package httpapi

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"unicode/utf8"

	"github.com/penstock-io/penstock/server/internal/httpserver"
)

// What a body may contain.
const (
	maxKey      = 4 << 10 // also of an ID, and of all keys and values of a descriptor together
	maxRequests = 64
)

// decode reads the body of POST /v1/take into c.requests.
func (c *call) decode(r *http.Request, maxDescriptors int) error {
	var err error
	switch c.body, err = httpserver.ReadBody(r, c.body); {
	case errors.Is(err, httpserver.ErrTooLarge):
		return err
	case err != nil:
		return &fieldError{problem: err.Error()}
	}
	return c.decodeBody(maxDescriptors)
}

// decodeBody parses the body: one request, or a list of them.
func (c *call) decodeBody(maxDescriptors int) error {
	if !utf8.Valid(c.body) {
		return &fieldError{problem: "want UTF-8; send a key of other bytes as key_base64"}
	}
	r := &c.reader
	*r = jsonReader{text: string(c.body)}
	top := newTakeRequest(maxDescriptors)
	has, err := r.object(requestFields|listFields, func(name string) error {
		switch name {
		case "mode":
			return c.decodeMode(r)
		case "requests":
			return r.array(func(i int) error { return c.decodeListed(r, i, maxDescriptors) })
		}
		return top.decodeField(r, name)
	})
	if err == nil {
		err = r.end()
	}
	if err != nil {
		return err
	}
	if has.has(listFields) {
		return c.checkList(has)
	}
	top.fields = has
	err = top.check()
	c.requests = append(c.requests, top)
	return err
}

func (c *call) decodeMode(r *jsonReader) error {
	text, err := r.string()
	if err != nil {
		return err
	}
	c.mode = mode(text)
	if c.mode != each && c.mode != all {
		return &fieldError{problem: fmt.Sprintf("%.20q: want \"each\" or \"all\"", text)}
	}
	return nil
}

// decodeListed parses request i of a list.
func (c *call) decodeListed(r *jsonReader, i, maxDescriptors int) error {
	if i == maxRequests {
		return &fieldError{problem: fmt.Sprintf("want at most %d requests", maxRequests)}
	}
	request := newTakeRequest(maxDescriptors)
	has, err := r.object(requestFields, func(name string) error { return request.decodeField(r, name) })
	request.fields = has
	c.requests = append(c.requests, request)
	return err
}

// checkList checks a list whose top-level object has the fields.
func (c *call) checkList(top fieldSet) error {
	switch {
	case top.has(requestFields):
		name := (top & requestFields).names()[0]
		return &fieldError{path: []string{name}, problem: name + " must be inside one of the requests"}
	case !top.has(fieldMode):
		return &fieldError{path: []string{"mode"}, problem: "want \"each\" or \"all\" with a list"}
	case len(c.requests) == 0:
		return &fieldError{path: []string{"requests"}, problem: "want at least one request"}
	}
	for i := range c.requests {
		if err := c.checkListed(&c.requests[i]); err != nil {
			return inRequest(i, err)
		}
	}
	return nil
}

// checkListed checks a request of a list. The store would report a reset as a negative cost,
// which the request does not have.
func (c *call) checkListed(t *takeRequest) error {
	if c.mode == all && t.reset && !t.ByRules() {
		return &fieldError{path: []string{"reset"}, problem: "reset cannot be used in an all-or-nothing request", kind: ProblemBadCost}
	}
	return t.check()
}

// inRequest adds the index of a request in a list to the path of an error.
func inRequest(i int, err error) error {
	return in("requests", in(strconv.Itoa(i), asFieldError(err)))
}
