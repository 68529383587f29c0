package rules

import (
	"maps"

	"github.com/fsnotify/fsnotify"
)

// ears hear of changes in the places that matter. Where the system has none to
// give, or not for some places, they hear nothing from there, and polling sees
// the change later.
type ears struct {
	heard   *survey
	watcher *fsnotify.Watcher // nil if there is none to be had
	events  <-chan fsnotify.Event
	errors  <-chan error
}

// listen begins to listen to what matters at a path. It begins anew every time
// that something was heard: after folders have been moved, removed and made again,
// that is the surest way to listen to the right ones.
func listen(path string) *ears {
	e := &ears{heard: surveyOf(path)}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return e
	}
	e.watcher, e.events, e.errors = watcher, watcher.Events, watcher.Errors
	const tries = 5
	for range tries {
		for folder := range e.heard.places {
			_ = watcher.Add(folder)
		}
		// What appeared before its folder was listened to is found now.
		again := surveyOf(path)
		if maps.EqualFunc(e.heard.places, again.places, maps.Equal) {
			break
		}
		e.heard = again
	}
	return e
}

func (e *ears) close() {
	if e.watcher != nil {
		_ = e.watcher.Close() // what it would say is of no use to anyone
	}
}
