package doctest

import (
	"go/parser"
	"go/token"
	"strings"
)

// A Fence is a block of a page between two lines of three backquotes.
type Fence struct {
	Page, Info, Body string
	Line             int // of the block's first line
}

// Fences returns the blocks of a page.
func Fences(page, text string) (fences []Fence) {
	var f *Fence
	for i, line := range strings.Split(text, "\n") {
		info, isFence := strings.CutPrefix(line, "```")
		switch {
		case isFence && f == nil:
			f = &Fence{Page: page, Info: info, Line: i + 2}
		case isFence:
			fences = append(fences, *f)
			f = nil
		case f != nil:
			f.Body += line + "\n"
		}
	}
	return fences
}

// A Command is a shell command that a document shows, and what the document shows as
// its output.
type Command struct {
	Page   string
	Line   int
	Text   string
	Output string
}

// PageCommands returns the commands of a page in Markdown: the lines of indented blocks
// and of shell blocks, and in transcripts those that begin with a dollar sign.
func PageCommands(page, text string) []Command {
	r := commandReader{page: page}
	info, inside := "", false
	for line := range strings.Lines(text) {
		r.line++
		line = strings.TrimRight(line, "\n")
		fence, isFence := strings.CutPrefix(line, "```")
		indented, isIndented := strings.CutPrefix(line, "    ")
		switch {
		case isFence:
			info, inside = fence, !inside
			r.begin = len(r.commands)
		case !inside && isIndented:
			r.add(indented)
		case inside && (info == "sh" || info == "bash" || info == "shell"):
			r.add(line)
		case inside && (info == "console" || info == "text"):
			r.addTranscript(line)
		}
	}
	return r.commands
}

// A commandReader collects the commands of a page.
type commandReader struct {
	page     string
	line     int
	commands []Command
	begin    int // the first command of the current block
}

// last returns the last command of the block, or nil.
func (r *commandReader) last() *Command {
	if len(r.commands) == r.begin {
		return nil
	}
	return &r.commands[len(r.commands)-1]
}

// add adds a line, or continues the command of the line before.
func (r *commandReader) add(text string) {
	text = strings.TrimSpace(text)
	if last := r.last(); last != nil && isOpen(last.Text) {
		last.Text += "\n" + text
		return
	}
	if text != "" && !strings.HasPrefix(text, "#") {
		r.commands = append(r.commands, Command{Page: r.page, Line: r.line, Text: text})
	}
}

// addTranscript adds a line of a transcript: a command, or the output of the command
// before it.
func (r *commandReader) addTranscript(text string) {
	last := r.last()
	command, isCommand := strings.CutPrefix(text, "$ ")
	switch {
	case isCommand, last != nil && isOpen(last.Text):
		r.add(command)
	case last != nil:
		last.Output += text + "\n"
	}
}

// isOpen reports whether a command continues on the next line: it ends in a backslash,
// or inside of single quotes.
func isOpen(command string) bool {
	return strings.HasSuffix(command, "\\") || strings.Count(command, "'")%2 == 1
}

// CommentCommands returns the commands in the code blocks of a Go file's comments that
// begin with one of the programs.
func CommentCommands(file string, source []byte, programs ...string) ([]Command, error) {
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, file, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var commands []Command
	for _, group := range f.Comments {
		for _, c := range group.List {
			text, isCode := strings.CutPrefix(c.Text, "//\t")
			for _, program := range programs {
				if isCode && strings.HasPrefix(text, program+" ") {
					commands = append(commands, Command{Page: file, Line: set.Position(c.Pos()).Line, Text: text})
				}
			}
		}
	}
	return commands, nil
}
