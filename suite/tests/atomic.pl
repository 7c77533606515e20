# What a program observes of f2fs's atomic writes, one line for each observation. Argument: a folder on an f2fs volume.
use strict;
use warnings;
use Fcntl qw(O_RDWR O_RDONLY O_CREAT O_DIRECT O_WRONLY);
use Digest::MD5 qw(md5_hex);
use IO::Handle;
use Time::HiRes qw(sleep);

my ($START, $COMMIT, $ABORT, $FEATURES) = (0xf501, 0xf502, 0xf505, 0x8004f50c);
my $top = shift;
my $db = "$top/db";
$| = 1;

sub say_line { print join(' ', @_), "\n" }

sub call {
    my ($file, $number, $argument) = @_;
    $argument //= 0;
    return defined ioctl($file, $number, $argument) ? 'done' : 'error ' . ($! + 0);
}

sub opened {
    my ($path, $flags) = @_;
    sysopen(my $file, $path, $flags, 0666) or die "$path: $!";
    return $file;
}

sub put {
    my ($file, $at, $data) = @_;
    sysseek($file, $at, 0) // die $!;
    my $n = syswrite($file, $data) // return 'error ' . ($! + 0);
    $n == length $data or die "short write";
    return 'written';
}

# Size and content as another open file shows them.
sub seen {
    my $file = opened(shift, O_RDONLY);
    my $size = -s $file;
    my $content = '';
    while (my $n = sysread($file, $content, 1 << 16, length $content)) { }
    length($content) == $size or die "read ", length $content, " of $size bytes";
    return "$size " . md5_hex($content);
}

sub fresh {
    my ($path, $size) = @_;
    unlink $path;
    my $file = opened($path, O_RDWR | O_CREAT);
    put($file, 0, 'a' x $size) if $size;
    $file->sync or die $!;
    chmod 0666, $path;
    return $file;
}

my $file = fresh($db, 10000);
my $features = pack 'L', 0;
ioctl($file, $FEATURES, $features) // die $!;
say_line('feature', unpack('L', $features) & 4);
say_line('without start', call($file, $COMMIT), call($file, $ABORT), seen($db));

for my $end ($ABORT, $COMMIT) {
    say_line('start', call($file, $START), call($file, $START));
    put($file, 4000, 'b' x 5000);
    put($file, 9990, 'c' x 30000);
    put($file, 100_000, 'd');
    say_line('staged', seen($db));
    my $other = opened($db, O_RDWR);
    put($other, 20, 'other');
    close $other;
    $file->sync or die $!;
    say_line('synced', seen($db));
    say_line('end', call($file, $end), seen($db));
}

for my $size (0, 1, 50, 4096, 5000, 1_000_000) {
    my $small = fresh("$top/small", $size);
    call($small, $START);
    put($small, 3, 'x' x 4097);
    say_line("of $size bytes", seen("$top/small"), call($small, $ABORT), seen("$top/small"));
    call($small, $START);
    put($small, 3, 'y' x 4097);
    say_line("of $size bytes", call($small, $COMMIT), seen("$top/small"));
}

my $reader = opened($db, O_RDONLY);
say_line('read-only', map { call($reader, $_) } $START, $COMMIT, $ABORT);
my $direct = opened($db, O_RDWR | O_DIRECT);
say_line('direct', map { call($direct, $_) } $START, $COMMIT, $ABORT);
my $dir = opened($top, O_RDONLY);
say_line('folder', map { call($dir, $_) } $START, $COMMIT, $ABORT);
{
    my $theirs = opened($db, O_RDWR);
    local $> = 65534;
    say_line('stranger', map { call($theirs, $_) } $START, $COMMIT, $ABORT);
}

# Closed without a commit.
$file = fresh($db, 20_000);
my $closing = opened($db, O_RDWR);
call($closing, $START);
put($closing, 0, 'z' x 30_000);
close $file;
close $closing;
# The server is notified after close(2) has returned.
sleep 0.2;
say_line('closed', seen($db));

# Another process that dies.
for my $signal ('KILL', 'none') {
    my $child = fork // die $!;
    if (!$child) {
        my $mine = opened($db, O_RDWR);
        call($mine, $START);
        put($mine, 5000, 'q' x 30_000);
        kill $signal, $$ if $signal ne 'none';
        exit 0;
    }
    waitpid $child, 0;
    sleep 0.2;
    say_line("died of $signal", seen($db));
}

# An unlinked file, and one that gets another name.
$file = fresh($db, 20_000);
call($file, $START);
put($file, 10, 'r' x 30_000);
rename $db, "$top/renamed" or die $!;
say_line('renamed', call($file, $COMMIT), seen("$top/renamed"));
call($file, $START);
unlink "$top/renamed" or die $!;
put($file, 0, 's' x 40_000);
say_line('unlinked', call($file, $COMMIT), -s $file);
close $file;

# What stays for the checker.
my $last = fresh($db, 300_000);
call($last, $START);
put($last, 4096 * $_, chr(65 + $_) x 4096) for 0 .. 60;
say_line('last', call($last, $COMMIT), seen($db));
