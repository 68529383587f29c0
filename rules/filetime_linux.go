package rules

import (
	"fmt"
	"io/fs"
	"syscall"
	"time"
)

// changeTime returns when a file was changed last. The status change time counts as well
// as the modification time, which programs can set, as cp -p does.
func changeTime(info fs.FileInfo) time.Time {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return later(info.ModTime(), time.Unix(s.Ctim.Unix()))
	}
	return info.ModTime()
}

// stamp identifies a version of a file without its content.
func stamp(info fs.FileInfo) string {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Sprintln(info.Size(), info.ModTime().UnixNano())
	}
	return fmt.Sprintln(s.Dev, s.Ino, info.Size(), info.ModTime().UnixNano(), s.Ctim.Nano())
}
