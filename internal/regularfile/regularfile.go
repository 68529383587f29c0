// Package regularfile opens files that only this program writes, and nothing else in their place: the opening of a FIFO
// would wait for another program, and a device may never end. What an operator names, such as rules, a configuration,
// a token or a certificate, is opened as it is: it may be /dev/stdin or the pipe of a shell's <(...).
package regularfile

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// Open is [os.OpenFile] for regular files. Anything else is an error, at once.
func Open(path string, flag int, perm fs.FileMode) (*os.File, error) {
	f, err := os.OpenFile(path, flag|syscall.O_NONBLOCK, perm)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", path)
	}
	if err != nil {
		_ = f.Close() // nothing was written
		return nil, err
	}
	return f, nil
}
