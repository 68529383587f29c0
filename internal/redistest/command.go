package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// Command asks the server something on a connection of its own. The answer is
// text: elements of an array come in lines, and nothing is the empty string.
func (s *Server) Command(words ...string) (string, error) {
	const patience = 10 * time.Second // on a busy machine
	conn, err := net.DialTimeout("tcp", s.Addr, patience)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	var request strings.Builder
	fmt.Fprintf(&request, "*%d\r\n", len(words))
	for _, w := range words {
		fmt.Fprintf(&request, "$%d\r\n%s\r\n", len(w), w)
	}
	if _, err := io.WriteString(conn, request.String()); err != nil {
		return "", err
	}
	return readAnswer(bufio.NewReader(conn))
}

func readAnswer(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimSuffix(line, "\r\n")
	if line == "" {
		return "", errors.New("redistest: empty answer")
	}
	switch line[0] {
	case '-':
		return "", errors.New(line[1:])
	case '$':
		return readText(r, line[1:])
	case '*':
		return readList(r, line[1:])
	}
	return line[1:], nil
}

func readText(r *bufio.Reader, length string) (string, error) {
	n, err := strconv.Atoi(length)
	if err != nil || n < 0 {
		return "", err
	}
	text := make([]byte, n+2)
	_, err = io.ReadFull(r, text)
	return string(text[:n]), err
}

func readList(r *bufio.Reader, length string) (string, error) {
	n, err := strconv.Atoi(length)
	if err != nil {
		return "", err
	}
	lines := make([]string, max(n, 0))
	for i := range lines {
		if lines[i], err = readAnswer(r); err != nil {
			return "", err
		}
	}
	return strings.Join(lines, "\n"), nil
}
