package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/server/observe"
	"golang.org/x/term"
)

// The control sequences of a terminal that penstock top uses.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l" // alternate screen, no cursor, no line wrap
	leaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

// interact draws the view until a key or a signal ends it.
func (t *topCommand) interact(ctx context.Context, at *connection, screen *os.File) error {
	state, err := term.MakeRaw(int(os.Stdin.Fd()))
	if err != nil {
		return err
	}
	defer func() { _ = term.Restore(int(os.Stdin.Fd()), state) }()
	fmt.Fprint(screen, enterScreen)
	defer fmt.Fprint(screen, leaveScreen)
	keys := make(chan byte)
	go readKeys(ctx, keys)
	tick := time.NewTicker(t.interval)
	defer tick.Stop()
	for {
		t.draw(ctx, at, screen)
		select {
		case <-ctx.Done():
			return nil
		case key := <-keys:
			if t.press(key) {
				return nil
			}
		case <-tick.C:
		}
	}
}

// readKeys sends what is typed, until the process ends.
func readKeys(ctx context.Context, keys chan<- byte) {
	var b [1]byte
	for {
		if n, err := os.Stdin.Read(b[:]); n == 0 || err != nil {
			return
		}
		select {
		case keys <- b[0]:
		case <-ctx.Done():
			return
		}
	}
}

// press changes the view by a key, and reports whether the key ends the command.
func (t *topCommand) press(key byte) (quit bool) {
	const interrupt, endOfFile = 3, 4 // a raw terminal sends no signals
	switch key {
	case 'q', interrupt, endOfFile:
		return true
	case 'l':
		t.view = viewLive
	case 'k':
		t.view = viewKeys
	case 'a':
		t.view, t.by = viewKeys, observe.ByAsked
	case 'd':
		t.view, t.by = viewKeys, observe.ByDenied
	case 'w':
		t.window = next(windowNames(), t.window)
	case 's':
		t.sort = next(observe.SortNames, t.sort)
	}
	return false
}

// next returns the word after another, and after the last the first.
func next(words []string, word string) string {
	return words[(slices.Index(words, word)+1)%len(words)]
}

// draw draws one frame. An error stands on the screen until the server answers again.
func (t *topCommand) draw(ctx context.Context, at *connection, screen *os.File) {
	width, height, err := term.GetSize(int(screen.Fd()))
	if err != nil || width <= 0 || height <= 1 { // a terminal may not know its size
		width, height = onceWidth, onceHeight
	}
	frame, err := t.fetch(ctx, at)
	frame.width, frame.color = width, wantsColor(screen)
	lines := []string{printable(fmt.Sprint(err))}
	if err == nil {
		lines = frame.lines()
	}
	lines = append(lines[:min(len(lines), height-1)], frame.dim("l live  k keys  a asked  d denied  w window  s order  q quit"))
	fmt.Fprint(screen, home+strings.Join(lines, clearLine+"\r\n")+clearLine+clearBelow)
}
