# Moves money between accounts in a database. Arguments: its file, and the number of transactions; then prints what the
# accounts hold together, and the result of an integrity check. With `read` instead of a number: reads until the input
# ends, and prints how often the sum was wrong.
import random
import select
import sqlite3
import sys

ACCOUNTS, AMOUNT = 200, 1000
path, work = sys.argv[1:]
db = sqlite3.connect(path, isolation_level=None, timeout=20)


def total():
    return db.execute("select sum(amount) from account").fetchone()[0]


def prepare():
    db.execute("create table if not exists account(id integer primary key, amount integer, text blob)")
    if total() is None:
        db.execute("begin")
        for number in range(ACCOUNTS):
            db.execute("insert into account values(?, ?, zeroblob(900))", (number, AMOUNT))
        db.execute("commit")


def transfer():
    db.execute("begin immediate")
    for _ in range(10):
        giver, taker, amount = (random.randrange(n) for n in (ACCOUNTS, ACCOUNTS, 50))
        db.execute("update account set amount = amount - ?, text = randomblob(900) where id = ?", (amount, giver))
        db.execute("update account set amount = amount + ? where id = ?", (amount, taker))
    db.execute("commit")


if work == "read":
    reads, wrong = 0, 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        reads += 1
        wrong += total() != ACCOUNTS * AMOUNT
    print("read", "enough" if reads > 100 else reads, "wrong", wrong)
else:
    prepare()
    for _ in range(int(work)):
        transfer()
    print(total(), db.execute("pragma integrity_check").fetchone()[0])
