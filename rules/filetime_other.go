//go:build !linux

package rules

import (
	"fmt"
	"io/fs"
	"time"
)

// changeTime returns when a file was changed last.
func changeTime(info fs.FileInfo) time.Time { return info.ModTime() }

// stamp identifies a version of a file without its content.
func stamp(info fs.FileInfo) string { return fmt.Sprintln(info.Size(), info.ModTime().UnixNano()) }
