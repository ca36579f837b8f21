# The client of Tidewaiter for Homebrew; deploy/clients fills it in.
class TidewaiterClient < Formula
  desc "Tell what container images hold, who signed them, and where they run"
  homepage "https://github.com/tidewaiter/tidewaiter"
  version "VERSION"
  license "Apache-2.0"

  # ARCHIVES

  def install
    bin.install "tidewaiter"
    bin.install_symlink "tidewaiter" => "kubectl-tidewaiter"
    bin.install_symlink "tidewaiter" => "kubectl-images"
    bin.install_symlink "tidewaiter" => "kubectl_complete-tidewaiter"
    bin.install_symlink "tidewaiter" => "kubectl_complete-images"
    generate_completions_from_executable(bin/"tidewaiter", "completion")
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/tidewaiter version")
  end
end
