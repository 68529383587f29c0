// Package demo serves the HTTP examples. A program of its own would call
// [http.Server.ListenAndServe].
package demo

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
)

// preferred is the address that the comments of the examples show.
const preferred = "localhost:8080"

// Main serves a handler until it fails, and ends the process. It prints the commands when
// the server listens, with the server's address in place of localhost:8080.
func Main(h http.Handler, err error, commands ...string) {
	if err == nil {
		err = serve(os.Stdout, preferred, h, commands)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func serve(w io.Writer, address string, h http.Handler, commands []string) error {
	listener, err := listen(address)
	if err != nil {
		return err
	}
	// Requests are accepted from here on, even those that come before Serve.
	for _, command := range commands {
		fmt.Fprintln(w, strings.ReplaceAll(command, preferred, listener.Addr().String()))
	}
	return http.Serve(listener, h)
}

// listen listens on an address, or on a free port of localhost if another program has
// the address, such as the daemon.
func listen(address string) (net.Listener, error) {
	listener, err := net.Listen("tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return net.Listen("tcp", "localhost:0")
	}
	return listener, err
}
