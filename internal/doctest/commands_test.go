package doctest

import (
	"reflect"
	"testing"
)

const commandPage = "Text, and then\n\n    penstock serve   # a comment\n    curl -d '{\n      \"a\": 1}' x \\\n      -H b\n\n" +
	"```console\n$ penstock peek\nkey  a\n\nfull\n$ penstock reset\n```\n" +
	"```text\nno command\n```\n```sh\n# comment\nmake run\n```\n```go\n    x := 1\n```\n"

func TestPageCommandsFindsCommandsAndOutput(t *testing.T) {
	got := PageCommands("p.md", commandPage)
	want := []Command{
		{"p.md", 3, "penstock serve   # a comment", ""},
		{"p.md", 4, "curl -d '{\n\"a\": 1}' x \\\n-H b", ""},
		{"p.md", 9, "penstock peek", "key  a\n\nfull\n"},
		{"p.md", 13, "penstock reset", ""},
		{"p.md", 20, "make run", ""},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestCommentCommandsFindsCodeBlocks(t *testing.T) {
	source := "// Package p is a penstock.\n//\n//\tpenstock serve\n//\tgo run .\n//\n// penstock is prose.\npackage p\n\n//\tcurl x\nvar a = `\n//\tpenstock in a string`\n"
	got, err := CommentCommands("p.go", []byte(source), "penstock", "curl")
	want := []Command{{"p.go", 3, "penstock serve", ""}, {"p.go", 9, "curl x", ""}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}
