package main

import "github.com/spf13/cobra"

// completionCommand replaces cobra's, which answers an unknown shell with its help.
func completionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish|powershell",
		Short: "Print a script that completes commands, flags and their values in a shell",
		Example: `  penstock completion bash > /etc/bash_completion.d/penstock
  penstock completion zsh > /usr/local/share/zsh/site-functions/_penstock
  penstock completion fish > ~/.config/fish/completions/penstock.fish`,
		Args:                  oneOfArgs("shell", "bash", "zsh", "fish", "powershell"),
		ValidArgs:             []string{"bash", "zsh", "fish", "powershell"},
		DisableFlagsInUseLine: true,
		RunE: func(c *cobra.Command, args []string) error {
			root, w := c.Root(), c.OutOrStdout()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(w, true)
			case "zsh":
				return root.GenZshCompletion(w)
			case "fish":
				return root.GenFishCompletion(w, true)
			}
			return root.GenPowerShellCompletionWithDesc(w)
		},
	}
}

// completeFlag completes the values of a flag: words, the names of files or
// directories, or nothing.
func completeFlag(c *cobra.Command, name, kind string, words []string) {
	directive := cobra.ShellCompDirectiveNoFileComp
	switch kind {
	case "file", "path":
		directive = cobra.ShellCompDirectiveDefault
	case "directory":
		directive = cobra.ShellCompDirectiveFilterDirs
	}
	// It fails only if there is no such flag, or if it has a completion already.
	_ = c.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, directive))
}
