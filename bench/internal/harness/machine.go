package harness

import (
	"os"
	"runtime/debug"
	"slices"
	"strings"
)

// processor returns the model of this machine's processor.
func processor() string {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err == nil {
		for line := range strings.Lines(string(info)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				return strings.TrimSpace(value)
			}
		}
	}
	return "unknown processor"
}

// Versions lists modules with the versions that this program was built with.
func Versions(modules []string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	var vs []string
	for _, m := range info.Deps {
		if slices.Contains(modules, m.Path) {
			vs = append(vs, m.Path+" "+m.Version)
		}
	}
	return strings.Join(vs, ", ")
}
