package respapi

import (
	"errors"

	"github.com/penstock-io/penstock/server/internal/requestlog"
)

// reject replies with an error to a command that makes no sense, and logs it.
func (c *conn) reject(reason requestlog.Reason, text string) {
	c.logInvalid(reason, text)
	c.out.error(text)
}

// logError logs the error of a command, if the command is at fault.
func (c *conn) logError(err error) {
	var argument argumentError
	var permission permissionError
	reason := requestlog.ReasonOf(err)
	switch {
	case errors.As(err, &argument):
		reason = requestlog.Arguments
	case errors.As(err, &permission):
		reason = requestlog.Forbidden
	}
	if reason != "" {
		c.logInvalid(reason, errorText(err))
	}
}

func (c *conn) logInvalid(reason requestlog.Reason, problem string) {
	c.server.options.Requests.Invalid(reason, problem, c.net.RemoteAddr().String())
}
