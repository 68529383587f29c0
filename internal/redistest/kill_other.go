//go:build !linux

package redistest

import "syscall"

func diesWithParent() *syscall.SysProcAttr { return nil }
